"""Prompts the drafter was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from macspec_models.training.responses import load_examples, load_prompts


def held_out_prompts(tokenizer: Any, categories: Sequence[str], per_category: int) -> list[tuple[str, str]]:
    """``(category, text)`` of prompts never trained on: the recipe's held-out ones, then ones it never answered."""
    prompts = load_prompts()
    trained = {example.line for example in load_examples(tokenizer) if not example.held_out}
    chosen = []
    for category in categories:
        rows = [p.text for i, p in enumerate(prompts) if p.category == category and i not in trained]
        step = max(1, len(rows) // per_category)
        chosen += [(category, text) for text in rows[::step][:per_category]]
    return chosen
