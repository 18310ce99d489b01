"""Let a target answer the training prompts: batched decoding, resumable, as token ids.

Half the answers are greedy and half sampled at temperature 0.7, so that a drafter sees both kinds of text.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import BatchKVCache

from macspec_models.training.responses import load_prompts

#: Sampling temperature of every second answer.
TEMPERATURE = 0.7


def regenerate(
    model: Any,
    tokenizer: Any,
    journal: Path,
    *,
    seconds: float,
    batch: int = 64,
    longest: int = 288,
    seed: int = 1,
    report: Callable[[str], None] = print,
) -> None:
    """Answer prompts until the time is up, appending finished answers to ``journal`` (JSON lines).

    A run continues where the journal ends: prompts are taken in one shuffled order.
    """
    prompts = load_prompts()
    order = list(range(len(prompts)))
    random.Random(seed).shuffle(order)
    done = set()
    if journal.exists():
        done = {json.loads(line)["prompt"] for line in journal.read_text(encoding="utf-8").splitlines()}
    waiting = [(line, number % 2 == 1) for number, line in enumerate(order) if line not in done]
    begin, finished, tokens = time.monotonic(), 0, 0
    with journal.open("a", encoding="utf-8") as out:
        # Prompts of similar length share a batch, so little of it is padding.
        for start in range(0, len(waiting), 4 * batch):
            group = [
                (encode_prompt(tokenizer, prompts[line].text), line, sampled)
                for line, sampled in waiting[start : start + 4 * batch]
            ]
            group.sort(key=lambda item: len(item[0]))
            for first in range(0, len(group), batch):
                for answer in _answer_batch(model, tokenizer, group[first : first + batch], longest, seed):
                    out.write(json.dumps(answer) + "\n")
                    finished, tokens = finished + 1, tokens + len(answer["tokens"])
                out.flush()
                elapsed = time.monotonic() - begin
                report(f"{elapsed:.0f} s: {finished} answers, {tokens} tokens, {tokens / elapsed:.0f} tokens/s")
                if elapsed > seconds:
                    return


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """A prompt as the engine would render it."""
    return list(tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True))


def _answer_batch(
    model: Any, tokenizer: Any, group: list[tuple[list[int], int, bool]], longest: int, seed: int
) -> list[dict[str, Any]]:
    width = max(len(tokens) for tokens, _, _ in group)
    padding = [width - len(tokens) for tokens, _, _ in group]
    cache = [BatchKVCache(padding) for _ in model.layers]
    rows = mx.array([[0] * pad + tokens for pad, (tokens, _, _) in zip(padding, group, strict=True)])
    model(rows[:, :-1], cache=cache)
    mx.eval([layer.state for layer in cache])
    current, live = rows[:, -1:], list(range(len(group)))
    answers: list[list[int]] = [[] for _ in group]
    stopped = [False] * len(group)
    hot = np.array([sampled for _, _, sampled in group])
    mx.random.seed(seed + group[0][1])
    for _ in range(longest):
        logits = model(current, cache=cache)[:, -1]
        noise = TEMPERATURE * mx.random.gumbel(logits.shape) * mx.array(hot[live])[:, None]
        chosen = cast(list[int], mx.argmax(logits + noise, axis=-1).tolist())
        keep = []
        for place, (number, token) in enumerate(zip(live, chosen, strict=True)):
            answers[number].append(token)
            stopped[number] = token in tokenizer.eos_token_ids
            if not stopped[number]:
                keep.append(place)
        if not keep:
            break
        if len(keep) < len(live):
            for layer in cache:
                layer.filter(mx.array(keep))
            live = [live[place] for place in keep]
        current = mx.array([[answers[number][-1]] for number in live])
    return [
        {"prompt": line, "temperature": TEMPERATURE if sampled else 0.0, "stopped": stop, "tokens": tokens}
        for (_, line, sampled), tokens, stop in zip(group, answers, stopped, strict=True)
    ]


def pack(journal: Path, out: Path) -> int:
    """Pack a journal into the compressed arrays that training reads; returns the number of answers."""
    rows = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    offsets = np.concatenate([[0], np.cumsum([len(row["tokens"]) for row in rows])])
    tokens = np.concatenate([np.array(row["tokens"], np.uint32) for row in rows])
    np.savez_compressed(
        out,
        prompt=np.array([row["prompt"] for row in rows], np.int32),
        temperature=np.array([row["temperature"] for row in rows], np.float32),
        stopped=np.array([row["stopped"] for row in rows], np.uint8),
        offset=offsets.astype(np.int64),
        tokens=tokens.astype(np.min_scalar_type(tokens.max(initial=0))),
    )
    return len(rows)
