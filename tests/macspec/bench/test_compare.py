from __future__ import annotations

import dataclasses

import pytest
from synthetic_reports import bare_report, make_report

from macspec.bench import compare
from macspec.bench.analysis import ALL
from macspec.errors import RequestError


def overall(outcome: compare.Outcome) -> dict[str, str]:
    return {line.second_arm: line.verdict for line in outcome.lines if line.category == ALL}


def test_a_run_with_itself_shows_no_difference() -> None:
    for seed in range(100):
        report = bare_report({"plain": 40.0, "depth 2": 60.0}, seed=seed, noise=0.15, prompts=8)
        outcome = compare.compare(report, report)
        assert {line.verdict for line in outcome.lines} == {"~"}
        assert not outcome.slower and not outcome.remarks


def test_two_depths_have_the_right_sign() -> None:
    for seed in range(100):
        fast, slow = (60.0, 45.0) if seed % 2 else (45.0, 60.0)
        first = bare_report({"plain": 40.0, "depth 2": slow}, seed=seed, prompts=12)
        second = bare_report({"plain": 40.0, "depth 4": fast}, seed=seed + 1000, prompts=12)
        outcome = compare.compare(first, second)
        line = next(x for x in outcome.lines if x.category == ALL and x.second_arm == "depth 4")
        assert (line.first_arm, line.verdict) == ("depth 2", "faster" if fast > slow else "slower")
        assert outcome.slower == (fast < slow) or overall(outcome)["plain"] == "slower"


def test_repeated_runs_seldom_differ() -> None:
    alarms = 0
    for seed in range(60):
        first = bare_report({"plain": 40.0}, seed=seed, noise=0.1)
        second = bare_report({"plain": 40.0}, seed=seed + 1000, noise=0.1)
        alarms += overall(compare.compare(first, second))["plain"] != "~"
    assert alarms <= 6


def test_other_prompts_are_compared_unpaired_and_said_so() -> None:
    first = make_report({"plain": 40.0}, seed=1)
    second = make_report({"plain": 80.0}, seed=2, suite="b" * 64)
    outcome = compare.compare(first, second)
    assert overall(outcome) == {"plain": "faster"}
    assert outcome.lines[0].comparison.method == "Welch"
    assert "prompts differ" in outcome.remarks[0]


def test_what_differs_is_told() -> None:
    first = make_report({"plain": 40.0}, seed=1)
    second = dataclasses.replace(
        first,
        versions={**first.versions, "mlx": "0.33.0"},
        pair={**first.pair, "model": "other"},
        machine=dataclasses.replace(first.machine, chip="Apple M1"),
        settings=dataclasses.replace(first.settings, seed=5),
    )
    text = compare.table(compare.compare(first, second))
    for part in ("machines differ", "models differ", "settings", "mlx: 0.32.4 and 0.33.0"):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_nothing_in_common() -> None:
    first = make_report({"plain": 40.0}, seed=1)
    renamed = dataclasses.replace(first, results=tuple(dataclasses.replace(r, arm="x") for r in first.results))
    with pytest.raises(RequestError, match="no arm in common"):
        compare.compare(first, renamed)
    with pytest.raises(RequestError, match="nothing to compare"):
        compare.compare(first, dataclasses.replace(first, samples=()))
