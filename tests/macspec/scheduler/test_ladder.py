import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macspec.scheduler.command import ladder_directory, published_ladders
from macspec.scheduler.ladder import Ladder, LadderError

TWO = Ladder((0, 1000), ((1.0, 2.0, 4.0), (2.0, 4.0, 8.0)), (0.5, 0.7))


def test_curve_is_linear_between_contexts_and_goes_on_behind_the_last() -> None:
    assert TWO.curve(0) == [1.0, 2.0, 4.0]
    assert TWO.curve(500) == pytest.approx([1.5, 3.0, 6.0])
    assert TWO.curve(1000) == pytest.approx([2.0, 4.0, 8.0])
    assert TWO.curve(2000) == pytest.approx([3.0, 6.0, 12.0])
    assert TWO.draft_ms(500) == pytest.approx(0.6)


def test_a_curve_that_falls_with_context_does_not_go_on_falling() -> None:
    falling = Ladder((0, 100), ((4.0, 5.0), (1.0, 2.0)), (1.0, 0.1))
    assert falling.curve(10_000) == [1.0, 2.0]
    assert falling.draft_ms(10_000) == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
@pytest.mark.parametrize("row", [0, 1])
def test_impossible_times_are_refused_with_a_sentence(bad: float, row: int) -> None:
    times = [5.0, 6.0]
    times[row] = bad
    with pytest.raises(LadderError, match="macspec profile --reprofile"):
        Ladder.single(times)


@pytest.mark.parametrize(
    ("contexts", "verify", "draft", "words"),
    [
        ((), (), (), "context lengths are missing"),
        ((5, 5), ((1.0, 2.0), (1.0, 2.0)), (0.0, 0.0), "not ascending"),
        ((-1,), ((1.0, 2.0),), (0.0,), "negative"),
        ((0,), ((1.0,),), (0.0,), "slope"),
        ((0,), ((),), (0.0,), "slope"),
        ((0, 9), ((1.0, 2.0), (1.0, 2.0, 3.0)), (0.0, 0.0), "differ"),
        ((0, 9), ((1.0, 2.0),), (0.0,), "not one verify row"),
        ((0,), ((1.0, 2.0),), (math.nan,), "draft"),
        ((0,), ((1.0, 2.0),), (-1.0,), "draft"),
    ],
)
def test_malformed_ladders_are_refused(contexts: tuple, verify: tuple, draft: tuple, words: str) -> None:
    with pytest.raises(LadderError, match=words):
        Ladder(contexts, verify, draft)


def test_json_round_trip() -> None:
    assert Ladder.from_json(json.loads(json.dumps(TWO.to_json()))) == TWO


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 99}, "schema"),
        ({"verify_ms": None}, "no number"),
        ({"verify_ms": [["x", "y"]]}, "no number"),
        ({"draft_ms": "12"}, "no number"),
        ({"contexts": [1.5, "a"]}, "no number"),
    ],
)
def test_damaged_json_is_refused(change: dict, words: str) -> None:
    with pytest.raises(LadderError, match=words):
        Ladder.from_json({**TWO.to_json(), **change})


def test_missing_field_is_named() -> None:
    values = TWO.to_json()
    del values["draft_ms"]
    with pytest.raises(LadderError, match="draft_ms"):
        Ladder.from_json(values)
    with pytest.raises(LadderError, match="not a JSON object"):
        Ladder.from_json([1, 2])


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(LadderError, match="no cost ladder"):
        Ladder.read(tmp_path / "none.json")
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"schema": 1, "ver')
    with pytest.raises(LadderError, match="cannot be read"):
        Ladder.read(damaged)


def test_shipped_ladders_name_their_sources() -> None:
    ladders = published_ladders()
    assert len(ladders) >= 9
    assert {ladder.name for ladder in ladders} == {path.stem for path in ladder_directory().glob("*.json")}
    for ladder in ladders:
        assert ladder.source and ladder.notes["chip"]
        assert ladder.max_rows >= 8


@given(st.integers(0, 10**6))
def test_curves_are_always_usable(context: int) -> None:
    for ladder in (TWO, Ladder((0, 100), ((4.0, 5.0), (1.0, 2.0)), (1.0, 0.1))):
        assert all(math.isfinite(ms) and ms > 0 for ms in ladder.curve(context))
        assert ladder.draft_ms(context) >= 0
