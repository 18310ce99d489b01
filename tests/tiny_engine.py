"""A whole engine over a tiny random model, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, SamplingParams
from macspec_models.drafters.interface import Drafter
from macspec_models.target import Target
from tiny_models import tiny_model


def tiny_tokenizer(vocab: int) -> Any:
    """A byte-level tokenizer of ``vocab`` tokens without merges; the last token ends a sequence."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: vocab - 1]
    pieces = {piece: number for number, piece in enumerate(alphabet)}
    for number in range(len(pieces), vocab - 1):
        pieces[f"Ġ{number}"] = number
    pieces["<end>"] = vocab - 1
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", clean_up_tokenization_spaces=False)
    return TokenizerWrapper(fast)


def tiny_target(family: str = "llama", seed: int = 0, **overrides: Any) -> Target:
    """A target with random weights and a byte tokenizer."""
    model, config = tiny_model(family, seed=seed, **overrides)
    vocab = config.get("text_config", config)["vocab_size"]
    return Target(model, tiny_tokenizer(vocab), config, f"tiny-{family}")


def tiny_engine(family: str = "llama", drafter: Drafter | None = None, seed: int = 0, **overrides: Any) -> Engine:
    """An engine over `tiny_target`."""
    return Engine(tiny_target(family, seed, **overrides), drafter, prefill_chunk=5)


def random_prompt(length: int, vocab: int, seed: int = 0) -> tuple[int, ...]:
    """Random token ids, the end token excluded."""
    return tuple(np.random.default_rng(seed).integers(0, vocab - 1, length).tolist())


def ask(prompt: tuple[int, ...], depth: str = "full", **sampling: Any) -> GenerationRequest:
    """A request for token ids."""
    return GenerationRequest(tokens=prompt, sampling=SamplingParams(**sampling), depth=depth)


#: A chat template small enough to read.
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_target(folder: Path, family: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """A tiny random model with a byte tokenizer and a chat template, as a folder on disk."""
    model, config = tiny_model(family, seed=seed, **{"vocab_size": 272, **overrides})
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    vocab = config["vocab_size"]
    (folder / "config.json").write_text(json.dumps({"eos_token_id": vocab - 1, **config}))
    tokenizer = tiny_tokenizer(vocab)._tokenizer
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder
