"""Figures of speculation out of the engine's rounds."""

from __future__ import annotations

import pytest

from macspec.request import Finished, GenerationStats, PrefillProgress, Round, Started
from macspec_tui.live import LiveFigures, why


def _round(verified: int = 4, accepted: int = 2, ms: float = 30.0, reason: str = "rate") -> Round:
    return Round(
        drafted=7 if verified else 0, verified=verified, accepted=accepted, committed=accepted + 1, reason=reason,
        draft_ms=2.0, verify_ms=ms - 3.0, other_ms=1.0,
    )  # fmt: skip


def test_the_rate_is_the_engines_own() -> None:
    live = LiveFigures()
    live.take(Started(prompt_tokens=10))
    for _ in range(10):
        live.take(_round())
    assert live.rate == pytest.approx(100.0)
    assert live.totals.acceptance_length == pytest.approx(3.0)
    assert live.totals.accepted_per_round == pytest.approx(2.0)


def test_the_rate_looks_back_a_moment_only() -> None:
    live = LiveFigures()
    live.take(Started())
    for _ in range(100):
        live.take(_round(ms=300.0))
    for _ in range(200):
        live.take(_round(ms=10.0))
    assert live.rate == pytest.approx(300.0)


def test_parked_rounds_do_not_dilute_the_depth() -> None:
    live = LiveFigures()
    live.take(Started())
    live.take(_round(verified=4, accepted=4))
    live.take(_round(verified=0, accepted=0))
    assert (live.totals.parked, live.totals.mean_depth, live.totals.accepted_per_round) == (1, 4.0, 4.0)


def test_prefill_and_context() -> None:
    live = LiveFigures()
    live.take(Started(prompt_tokens=100, cached_tokens=40))
    assert (live.prefilling, live.prefill_done) == (True, 40)
    live.take(PrefillProgress(done=100, total=100))
    assert not live.prefilling
    live.take(_round())
    assert live.context == 103
    live.take(Finished(stats=GenerationStats(prompt_tokens=100, generation_tokens=50)))
    assert live.context == 150


def test_a_new_answer_starts_from_nothing() -> None:
    live = LiveFigures()
    live.take(Started(prompt_tokens=5))
    live.take(_round())
    live.take(Started(prompt_tokens=9))
    assert (live.totals.rounds, live.context, live.rate) == (0, 9, 0.0)


def test_a_long_answer_keeps_a_bounded_number_of_rounds() -> None:
    live = LiveFigures()
    live.take(Started())
    for _ in range(5000):
        live.take(_round())
    assert len(live.rounds) == len(live.rates) == 256
    assert live.totals.rounds == 5000


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (_round(0, 0, reason="parked: plain is faster"), "Parked"),
        (_round(reason="probe (rate 3.0/s)"), "Probing"),
        (_round(reason="flat cost: full depth (rate 1/s)"), "next to nothing"),
        (_round(reason="fixed at 4"), "by hand"),
        (_round(0, 0, reason="plain decoding"), "off"),
        (_round(0, 0, reason="something else"), "Plain step"),
        (_round(7, 2, reason="buys while survival pays"), "Full depth"),
        (_round(3, 2, reason="buys while survival pays"), "3 of 7 drafted"),
    ],
)
def test_reasons_are_sentences(event: Round, words: str) -> None:
    sentence = why(event, 7)
    assert words in sentence and sentence.endswith(".")


def test_no_round_no_reason() -> None:
    assert why(None, 7) == ""
