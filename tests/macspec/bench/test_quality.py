from __future__ import annotations

import random

import pytest

from macspec.bench.quality import first_difference, is_degenerate, loops_at_end
from macspec.bench.samples import Sample


def answer(tokens: tuple[int, ...] = (), text: str = "", arm: str = "x") -> Sample:
    return Sample(arm=arm, prompt="p", category="chat", tokens=tokens, text=text, generation_tokens=len(tokens))


def test_prose_is_not_degenerate() -> None:
    rng = random.Random(1)
    assert not is_degenerate(answer(tuple(rng.randrange(1000) for _ in range(300))))
    assert not is_degenerate(answer(text="The quick brown fox jumps over the lazy dog and then it sleeps. " * 2))


@pytest.mark.parametrize("period", [1, 2, 5, 12, 20])
def test_a_loop_at_the_end_is_degenerate(period: int) -> None:
    start = tuple(range(100, 160))
    assert is_degenerate(answer(start + tuple(range(period)) * (60 // period + 1)))


def test_a_loop_that_ended_is_not_at_the_end() -> None:
    assert not loops_at_end([1, 2] * 10 + list(range(50)))


def test_loops_with_small_changes_are_too_uniform() -> None:
    tokens = [t for i in range(12) for t in (*range(10), 500 + i)]
    assert not loops_at_end(tokens)
    assert is_degenerate(answer(tuple(tokens)))


def test_a_numbered_list_with_little_repetition_passes() -> None:
    rng = random.Random(2)
    tokens = [t for i in range(12) for t in (7, 8, 300 + i, *(rng.randrange(900) for _ in range(9)))]
    assert not is_degenerate(answer(tuple(tokens)))


def test_short_answers_are_not_judged() -> None:
    assert not is_degenerate(answer((1,) * 10))


def test_first_difference() -> None:
    assert first_difference(answer((1, 2, 3)), answer((1, 2, 3))) is None
    found = first_difference(answer((1, 2, 3, 4)), answer((1, 2, 9, 4)))
    assert found is not None
    assert (found.position, found.expected, found.found) == (2, 3, 9)
    cut = first_difference(answer((1, 2, 3)), answer((1, 2)))
    assert cut is not None and (cut.position, cut.expected, cut.found) == (2, 3, None)


def test_text_decides_where_there_are_no_ids() -> None:
    assert first_difference(answer((1, 2), "abc"), answer((), "abc")) is None
    found = first_difference(answer((1, 2), "abc"), answer((), "abd"))
    assert found is not None and found.position == 2
