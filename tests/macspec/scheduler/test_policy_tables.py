"""The table of all rules over all ladders."""

import json

import pytest

from benchmarks import policies
from macspec.scheduler.synthetic import synthetic_trace
from macspec.scheduler.trace import Trace

MADE = {
    "one": {"rate": 1.2, "dspark": 1.1, "plain": 1.0, "best-fixed": 1.3, "informed": 1.25, "oracle": 2.0},
    "two": {"rate": 0.9, "dspark": 0.8, "plain": 1.0, "best-fixed": 1.0, "informed": 1.0, "oracle": 1.5},
}


def test_means_are_geometric_and_sorted() -> None:
    means = policies.geometric_means(MADE)
    assert means["rate"] == pytest.approx((1.2 * 0.9) ** 0.5, abs=1e-4)
    assert list(means)[0] == "oracle"


def test_verdicts_name_every_rule_that_is_ahead_and_no_bound() -> None:
    assert policies.verdicts(MADE) == [
        "rate wins on the geometric mean: 1.039, plain 1.000",
        "rate has 93.0% of the informed rule's speed, NOT WITHIN 6%",
        "ahead of rate (0.900) on two: plain 1.000",
    ]
    worse = {"one": {**MADE["one"], "dspark": 2.0}}
    assert policies.verdicts(worse)[0] == "rate LOSES on the geometric mean: 1.200, dspark 2.000"


def test_the_command_writes_what_it_prints(tmp_path, monkeypatch, capsys) -> None:
    made = synthetic_trace(40, slots=3)
    blind = Trace(made.rounds[:20], {"target": "t", "ladder": {}})
    monkeypatch.setattr(policies, "traces", lambda: {"invented": made, "recorded": blind})
    monkeypatch.setattr("sys.argv", ["policies", "--json", str(tmp_path / "t.json")])
    policies.main()
    printed, written = capsys.readouterr().out, json.loads((tmp_path / "t.json").read_text())
    assert all(sentence in printed for part in written.values() for sentence in part["verdicts"])
    assert written["recorded"]["trace"] == {"target": "t"} and written["recorded"]["rounds"] == 20
    assert len(written["invented"]["simulated_to_plain"]) == len(policies.published_ladders())
