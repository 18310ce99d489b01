"""Is an answer fit to be timed, and is it the same answer? Repetition gate and first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from macspec.bench.samples import Sample
from macspec.request import Wire

#: Shortest answer, in items, that is judged at all.
MIN_JUDGED = 24
#: A loop of up to this many items that fills the end of an answer makes it degenerate.
MAX_PERIOD = 20
#: The loop must cover this many items at the end, and be seen at least three times.
MIN_LOOP = 18
#: Longer answers with fewer distinct 4-grams than this share are degenerate too (loops with small changes).
MIN_DISTINCT = 0.5
DISTINCT_FROM = 64


@dataclass(frozen=True, slots=True)
class Difference(Wire):
    """Where an arm's answer departs from the plain one."""

    arm: str
    prompt: str
    #: Index of the first differing token (or character where only text is known), counted from the answer's start.
    position: int
    expected: int | None = None
    found: int | None = None
    #: The target's logit gap between the two tokens there; small means a near-tie. None when nobody could tell.
    gap: float | None = None


def is_degenerate(sample: Sample) -> bool:
    """Whether the answer repeats itself: such text is accepted far too easily to say anything about speed."""
    items: Sequence[object] = sample.tokens or sample.text.split()
    return loops_at_end(items) or _too_uniform(items)


def loops_at_end(items: Sequence[object]) -> bool:
    """Whether the last items are one short block again and again."""
    count = len(items)
    if count < MIN_JUDGED:
        return False
    for period in range(1, MAX_PERIOD + 1):
        need = max(MIN_LOOP, 3 * period)
        if need > count:
            break
        if all(items[-i] == items[-i - period] for i in range(1, need - period + 1)):
            return True
    return False


def _too_uniform(items: Sequence[object]) -> bool:
    if len(items) < DISTINCT_FROM:
        return False
    grams = [tuple(items[i : i + 4]) for i in range(len(items) - 3)]
    return len(set(grams)) / len(grams) < MIN_DISTINCT


def first_difference(expected: Sample, found: Sample) -> Difference | None:
    """Where ``found`` departs from ``expected``; None when they are the same.

    Token ids decide when both have them, else the text. An answer cut off at its limit elsewhere than the other one
    differs at its end.
    """
    if expected.tokens and found.tokens:
        a: Sequence[int] = expected.tokens
        b: Sequence[int] = found.tokens
    else:
        a, b = [ord(c) for c in expected.text], [ord(c) for c in found.text]
    if tuple(a) == tuple(b):
        return None
    position = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return Difference(
        arm=found.arm,
        prompt=found.prompt,
        position=position,
        expected=a[position] if position < len(a) else None,
        found=b[position] if position < len(b) else None,
    )
