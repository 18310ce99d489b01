"""Held-out acceptance of a trained drafter, category by category, and the card that is shipped with it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from macspec_models.training.drafter import Trainer, denoise

#: Every how many positions of an answer a block is drafted.
STRIDE = 4


def acceptance_by_category(trainer: Trainer, stride: int = STRIDE) -> dict[str, dict[str, Any]]:
    """Expected acceptance length and first-slot accuracy on answers that were never trained on.

    Every block is scored over the whole vocabulary against the target's own continuation. Answers sampled at a
    temperature count too, so greedy text is accepted a little more often than this says.
    """
    config, network = trainer.config, trainer.network
    embedding = trainer.batches.embedding
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for index in trainer.held_out_pool.tolist():
        example = trainer.examples[index]
        features = trainer.batches.store.get([index])[0].astype(np.float32)
        last = len(example.tokens) - config.block_size
        anchors = np.arange(example.prompt_length, last, stride)
        if len(anchors) == 0:
            continue
        positions = anchors[:, None] + np.arange(config.block_size)
        real = example.tokens[positions]
        blocks = np.full_like(real, config.mask_token_id)
        blocks[:, 0] = real[:, 0]
        visible = np.arange(len(features))[None] < anchors[:, None]
        hidden = denoise(
            network,
            mx.array(features)[None],
            embedding(mx.array(blocks)),
            mx.array(anchors),
            mx.array(visible)[None],
        )[:, 1:]
        drafts = np.array(mx.argmax(embedding.as_linear(hidden), axis=-1))
        found[example.category].append(drafts == real[:, 1:])
    rows = {category: np.concatenate(hits) for category, hits in sorted(found.items())}
    rows["all"] = np.concatenate(list(rows.values()))
    return {
        category: {
            "blocks": len(hits),
            "acceptance_length": round(1 + float(np.cumprod(hits, axis=1).sum(axis=1).mean()), 3),
            "slots": hits.mean(axis=0).round(3).tolist(),
        }
        for category, hits in rows.items()
    }


def write_card(trainer: Trainer, folder: Path, history: str) -> None:
    """Write ``README.md`` and ``acceptance.json`` beside an exported drafter."""
    rows = acceptance_by_category(trainer)
    (folder / "acceptance.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    config = trainer.config
    table = "\n".join(
        f"| {category} | {row['blocks']} | {row['acceptance_length']:.2f} | "
        + " ".join(f"{value:.2f}" for value in row["slots"])
        + " |"
        for category, row in rows.items()
    )
    size = (folder / "model.safetensors").stat().st_size / 1e6
    answers, tokens = len(trainer.examples), sum(len(e.tokens) - e.prompt_length for e in trainer.examples)
    (folder / "README.md").write_text(
        f"""# DFlash drafter for SmolLM2-135M-Instruct

A block-diffusion drafter (DFlash, arXiv 2602.06036) in the published checkpoint layout: {config.num_hidden_layers}
layers, blocks of {config.block_size}, taps {list(config.target_layer_ids)}, {size:.1f} MB in bfloat16. Apache-2.0.

**Data.** {answers:,} answers of the target itself, {tokens:,} tokens, half greedy and half at temperature 0.7, to
prompts written for this project in eight categories. Every 40th answer is held out.

**Training.** {history}

**Held-out acceptance**, full depth, every {STRIDE}th position, whole vocabulary, tokens per round with the bonus token:

| category | blocks | acceptance length | accuracy of slots 1 to {config.block_size - 1} |
|---|---|---|---|
{table}

**Reproduce** (hours on two CPU cores; stops and resumes):

```sh
macspec train drafter --steps 10000
macspec train drafter --steps 400 --decay 400
macspec train export --out drafter
```

The mask token is an ordinary one (`!`): any id works, since the drafter learns what it means in an open slot.
""",
        encoding="utf-8",
    )
