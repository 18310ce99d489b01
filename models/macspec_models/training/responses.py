"""The target's own answers to our prompts: what a drafter is trained on.

A drafter learns to predict its target, so the responses must be the target's (DFlash section 5 regenerates them too).
They are stored as token ids, once, beside the prompts they answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"

#: Every ``HELD_OUT``-th answer is never trained on.
HELD_OUT = 40


@dataclass(frozen=True)
class Example:
    """One prompt with the target's answer, as token ids."""

    index: int
    #: Line of its prompt in the prompts' file.
    line: int
    category: str
    tokens: np.ndarray
    prompt_length: int
    held_out: bool


@dataclass(frozen=True)
class Prompt:
    """One training prompt."""

    category: str
    text: str


def load_prompts(path: Path = DATA / "prompts.jsonl") -> list[Prompt]:
    """Prompts in file order; an answer refers to its prompt by line number."""
    with path.open(encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines)
        return [Prompt(row["category"], row["prompt"]) for row in rows]


def load_examples(tokenizer: Any, path: Path = DATA / "responses.npz", shortest: int = 12) -> Iterator[Example]:
    """Yield prompt + answer for every stored answer of at least ``shortest`` tokens.

    Args:
        tokenizer: an mlx-lm tokenizer; its chat template renders the prompt as the engine does.
    """
    prompts = load_prompts()
    with np.load(path) as stored:
        lines, offsets, answers = stored["prompt"], stored["offset"], stored["tokens"]
    kept = 0
    for line, begin, end in zip(lines, offsets[:-1], offsets[1:], strict=True):
        if end - begin < shortest:
            continue
        prompt = prompts[int(line)]
        messages = [{"role": "user", "content": prompt.text}]
        head = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        tokens = np.concatenate([np.asarray(head, np.int32), answers[begin:end].astype(np.int32)])
        yield Example(kept, int(line), prompt.category, tokens, len(head), kept % HELD_OUT == 0)
        kept += 1
