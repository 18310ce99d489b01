"""How much of a drafter's blocks a target accepts, without a decode loop: drafts along texts the target wrote itself.

The text is known, so nothing is verified: a draft token is accepted if it is the one the text goes on with, which for
greedy text is exactly what verification would say. Drafters are compared at the same positions of the same texts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
from mlx_lm import stream_generate

from macspec_models.drafters.interface import Drafter
from macspec_models.target import Target


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids of a prompt and what the target wrote after it."""

    tokens: Sequence[int]
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was seen over ``drafts`` drafts at full depth."""

    drafts: int
    #: Mean tokens per round, bonus included.
    length: float
    #: Share of drafts whose first k tokens are all right, k = 1, 2, ….
    survival: tuple[float, ...]
    #: Median milliseconds of a draft, tokens on the host.
    draft_ms: float


def greedy_texts(target: Target, prompts: Sequence[str], tokens: int) -> list[Text]:
    """The target's own answers at temperature 0, at most ``tokens`` long."""
    texts = []
    for prompt in prompts:
        messages = [{"role": "user", "content": prompt}]
        begin = _prompt(target.tokenizer, messages, prompt)
        answer = [step.token for step in stream_generate(target.model, target.tokenizer, begin, max_tokens=tokens)]
        texts.append(Text([*begin, *answer], len(begin)))
    return texts


def measure(
    target: Target,
    drafters: Mapping[str, Drafter],
    texts: Sequence[Text],
    *,
    stride: int = 3,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Acceptance]:
    """Acceptance of every drafter at every ``stride``-th position of the texts' answers.

    Leaves the target's taps as the last drafter's. ``report`` gets texts done and those in all, drafter by drafter.

    Raises:
        ValueError: the texts are too short to draft anything.
    """
    found = {}
    for number, (name, drafter) in enumerate(drafters.items()):
        target.set_taps(drafter.taps)
        lengths: list[int] = []
        times: list[float] = []
        for done, text in enumerate(texts):
            _follow(target, drafter, text, stride, lengths, times)
            report(number * len(texts) + done + 1, len(drafters) * len(texts))
        if not lengths:
            raise ValueError("the texts are too short to draft anything")
        survival = [sum(k < n for n in lengths) / len(lengths) for k in range(drafter.max_depth)]
        found[name] = Acceptance(
            len(lengths), 1 + sum(lengths) / len(lengths), tuple(survival), statistics.median(times)
        )
    return found


def _follow(target: Target, drafter: Drafter, text: Text, stride: int, lengths: list[int], times: list[float]) -> None:
    tokens = list(text.tokens)
    # Behind the last position the block would run over the end of the text.
    positions = range(text.prompt_length, len(tokens) - drafter.max_depth, stride)
    target.forward(mx.array([tokens]), target.make_cache())
    features = target.features()
    context, held = drafter.new_context(), 0
    for position in positions:
        rows = mx.zeros((position - held, 0)) if features is None else features[held:position]
        drafter.extend(context, rows)
        held = position
        mx.eval(context.arrays())
        begin = time.perf_counter()
        block = drafter.draft(context, tokens[position], tokens[: position + 1])
        draft = cast(list[int], block.tokens.tolist())
        times.append(1e3 * (time.perf_counter() - begin))
        truth = tokens[position + 1 : position + 1 + len(draft)]
        wrong = (k for k, (one, two) in enumerate(zip(draft, truth, strict=True)) if one != two)
        lengths.append(next(wrong, len(draft)))


def _prompt(tokenizer: Any, messages: list[dict[str, str]], prompt: str) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
