import dataclasses
import json
from pathlib import Path

import pytest

from fake_drafters import FakeDrafter
from macspec.engine.loop import Engine
from macspec.errors import RequestError
from macspec.machine import Machine, State
from macspec.profiling.command import chart
from macspec.profiling.measure import Meter
from macspec.profiling.policies import PolicyMaker, attach
from macspec.profiling.store import ProfileStore
from macspec.request import Finished, Round
from macspec.scheduler.interface import RoundOutcome, SlotConfidence
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.rate import RatePolicy
from tiny_engine import ask, random_prompt, tiny_engine

MACHINE = Machine(system="Darwin", chip="Apple M9", usable_cores=8, memory_bytes=2**36)
CALM, BUSY = State(power="ac", load=0.5), State(power="ac", load=30.0)
LADDER = Ladder((0, 9), ((10.0, 12.0, 15.0, 19.0),) * 2, (1.0, 1.0))


@pytest.fixture
def engine() -> Engine:
    return tiny_engine(drafter=FakeDrafter(lambda history, count: [1] * count, max_depth=3))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a ladder was measured; the ladder is `LADDER`."""
    count: list[int] = []

    def ladder(self: Meter, name: str = "measured") -> Ladder:
        count.append(1)
        return LADDER

    monkeypatch.setattr(Meter, "ladder", ladder)
    return count


def maker(engine: Engine, folder: Path, said: list[str] | None = None, *, state: State = CALM) -> PolicyMaker:
    sentences = said if said is not None else []
    return attach(engine, store=ProfileStore(folder), say=sentences.append, machine=MACHINE, condition=lambda: state)


def test_the_first_rule_that_weighs_costs_measures_and_the_next_start_reads(
    engine: Engine, tmp_path: Path, measured: list[int]
) -> None:
    said: list[str] = []
    first = maker(engine, tmp_path, said)
    first("full")
    assert measured == []
    assert isinstance(first("rate"), RatePolicy)
    first("dcut")
    assert len(measured) == 1 and "not measured" in said[0]
    again: list[str] = []
    second = maker(engine, tmp_path, again)
    second("rate")
    assert len(measured) == 1 and again == []
    assert second.ladder_ms == LADDER.verify[0]


def test_rules_share_costs_and_calibration(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    one = maker(engine, tmp_path)
    a, b = one("rate"), one("rate")
    assert isinstance(a, RatePolicy) and isinstance(b, RatePolicy)
    assert a.cost is b.cost and a.survival is b.survival


def test_without_a_drafter_nothing_is_measured(tmp_path: Path, measured: list[int]) -> None:
    one = maker(tiny_engine(), tmp_path)
    assert one("plain").name == "plain"
    assert measured == []


def test_unknown_rules_are_refused_before_measuring(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    with pytest.raises(RequestError, match="no policy"):
        maker(engine, tmp_path)("fastest")
    assert measured == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chip": "Apple M10"}, "not measured"),
        ({"usable_cores": 4}, "number of usable cores changed from 8 to 4"),
        ({"os_build": "26A1"}, "operating system changed"),
        ({"memory_bytes": 2**35}, "memory changed"),
    ],
)
def test_another_machine_measures_again_and_says_why(
    engine: Engine, tmp_path: Path, measured: list[int], change: dict, words: str
) -> None:
    maker(engine, tmp_path).prepare()
    said: list[str] = []
    other = dataclasses.replace(MACHINE, **change)
    PolicyMaker(engine, store=ProfileStore(tmp_path), say=said.append, machine=other, condition=lambda: CALM).prepare()
    assert len(measured) == 2
    assert words in said[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 9, "identity": {}}'])
def test_damaged_files_are_measured_again(engine: Engine, tmp_path: Path, measured: list[int], text: str) -> None:
    one = maker(engine, tmp_path)
    path = one.store.path(one.prepare().identity)
    path.write_text(text)
    said: list[str] = []
    maker(engine, tmp_path, said).prepare()
    assert len(measured) == 2
    assert str(path) in said[0]
    assert json.loads(path.read_text())["ladder"]["verify_ms"][0] == [10.0, 12.0, 15.0, 19.0]


def test_impossible_times_in_the_file_are_measured_again(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    one = maker(engine, tmp_path)
    path = one.store.path(one.prepare().identity)
    path.write_text(path.read_text().replace("12.0", "-12.0"))
    said: list[str] = []
    maker(engine, tmp_path, said).prepare()
    assert len(measured) == 2 and "-12.0" in said[0]


def test_an_interrupted_measurement_leaves_the_old_profile(
    engine: Engine, tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = maker(engine, tmp_path)
    path = one.store.path(one.prepare().identity)
    before = path.read_bytes()

    def interrupted(self: Meter, name: str = "measured") -> Ladder:
        raise KeyboardInterrupt

    monkeypatch.setattr(Meter, "ladder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.prepare(again=True)
    assert path.read_bytes() == before
    assert maker(engine, tmp_path).prepare().ladder.verify == LADDER.verify


def test_a_busy_machine_is_warned_about_and_measured_again_when_calm(
    engine: Engine, tmp_path: Path, measured: list[int]
) -> None:
    said: list[str] = []
    assert maker(engine, tmp_path, said, state=BUSY).prepare().doubtful
    assert any("busy" in sentence for sentence in said)
    maker(engine, tmp_path, state=BUSY).prepare()
    assert len(measured) == 1
    calm: list[str] = []
    assert not maker(engine, tmp_path, calm).prepare().doubtful
    assert len(measured) == 2 and "busy or hot" in calm[0]


def test_a_hot_machine_is_warned_about(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    said: list[str] = []
    hot = dataclasses.replace(CALM, thermal_level=2)
    assert maker(engine, tmp_path, said, state=hot).prepare().doubtful
    assert any("hot" in sentence for sentence in said)


def test_low_power_mode_has_a_profile_of_its_own(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    low = dataclasses.replace(CALM, low_power_mode=True)
    maker(engine, tmp_path).prepare()
    maker(engine, tmp_path, state=low).prepare()
    maker(engine, tmp_path).prepare()
    assert len(measured) == 2 and len(list(tmp_path.glob("*.json"))) == 2


def test_what_was_learned_is_kept(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    one = maker(engine, tmp_path)
    policy = one("rate")
    seen = (SlotConfidence(0.9, 1.0, 1.0),) * 3
    for _ in range(50):
        policy.observe(RoundOutcome(3, 3, 4, 3, 0, 1.0, 19.0, 0.0, 0.0, seen))
    one.save()
    second = maker(engine, tmp_path)("rate")
    assert isinstance(second, RatePolicy) and second.survival.rounds == 50
    assert second.survival.conditionals(seen, 0.0)[0] > 0.9


def test_a_ladder_that_stopped_fitting_is_measured_again(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    one = maker(engine, tmp_path)
    policy = one("rate")
    for _ in range(600):
        policy.observe(RoundOutcome(0, 0, 1, 0, 0, 0.0, 500.0, 0.0))
    one.save()
    said: list[str] = []
    maker(engine, tmp_path, said).prepare()
    assert len(measured) == 2 and "other times" in said[0]


def test_saving_without_having_learned_anything_writes_nothing(engine: Engine, tmp_path: Path) -> None:
    maker(engine, tmp_path).save()
    assert list(tmp_path.iterdir()) == []


def test_a_whole_answer_with_the_default_rule(engine: Engine, tmp_path: Path) -> None:
    one = maker(engine, tmp_path)
    prompt = random_prompt(12, engine.target.vocab_size)
    request = dataclasses.replace(ask(prompt, depth="auto", max_tokens=40, ignore_eos=True), policy="rate")
    plain = dataclasses.replace(request, depth="0")
    texts = []
    for asked in (request, plain):
        events = list(engine.generate(asked))
        assert isinstance(events[-1], Finished)
        rounds = [event for event in events if isinstance(event, Round)]
        assert all(event.reason for event in rounds)
        texts.append([token.id for event in events for token in getattr(event, "tokens", ())])
    assert texts[0] == texts[1]
    one.save()
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_the_chart(engine: Engine, tmp_path: Path, measured: list[int]) -> None:
    lines = chart(maker(engine, tmp_path).prepare())
    text = "\n".join(lines)
    assert "Apple M9" in text and "10.00 ms" in text and "+4.00" in text and "pays" in text
