from pathlib import Path

import pytest

from macspec.scheduler.interface import SlotConfidence
from macspec.scheduler.synthetic import synthetic_trace
from macspec.scheduler.trace import TraceError, TraceRound, read_trace, write_trace

ROUND = TraceRound((SlotConfidence(0.5, 1.0, 2.0), SlotConfidence(0.25, 0.5, 3.0)), 2, 1, tag="chat", context=9)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rounds = [ROUND, *synthetic_trace(20, slots=3).rounds]
    write_trace(path, rounds, {"target": "tiny"})
    trace = read_trace(path)
    assert trace.header["target"] == "tiny"
    assert trace.rounds[0] == ROUND
    assert len(trace.rounds) == 21 and trace.slots == 3
    assert trace.rounds[5].accepted == rounds[5].accepted


def test_rounds_cut_before_a_rejection_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    cut = TraceRound(ROUND.confidence, 1, 1)
    rejected = TraceRound(ROUND.confidence, 1, 0)
    write_trace(path, [ROUND, cut, rejected])
    trace = read_trace(path)
    assert trace.rounds == (ROUND, rejected)
    assert trace.censored == 1


def test_only_cut_rounds_are_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, [TraceRound(ROUND.confidence, 1, 1)])
    with pytest.raises(TraceError, match="--depth full"):
        read_trace(path)


def test_an_interrupted_recording_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, [ROUND, ROUND])
    path.write_text(path.read_text()[:-40])
    assert len(read_trace(path).rounds) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no trace"),
        ("{}\n", "no trace"),
        ("nonsense\n", "Line 1"),
        ('{"kind": "macspec-trace", "schema": 7}\n', "schema"),
        ('{"kind": "macspec-trace", "schema": 1}\n{"depth": 1}\n{}\n', "Line 2"),
        (
            '{"kind": "macspec-trace", "schema": 1}\n{"depth": 1, "accepted": 2, "confidence": [[1, 1, 1]]}\n{}\n',
            "agree",
        ),
        (
            '{"kind": "macspec-trace", "schema": 1}\n{"depth": 1, "accepted": 1, "confidence": [[NaN, 1, 1]]}\n',
            "finite",
        ),
    ],
)
def test_damaged_files_name_the_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=words):
        read_trace(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
