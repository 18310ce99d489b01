import argparse
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from macspec.errors import RequestError
from macspec.scheduler.command import add_arguments, find_ladders, published_ladders, run
from macspec.scheduler.interface import SlotConfidence
from macspec.scheduler.ladder import Ladder, LadderError
from macspec.scheduler.policies import COMPARED, make_policy
from macspec.scheduler.simulate import replay, simulate
from macspec.scheduler.synthetic import CODE, HARD, PROSE, synthetic_trace
from macspec.scheduler.trace import Trace, TraceRound, read_trace

RECORDED = Path(__file__).parents[3] / "benchmarks" / "traces" / "smollm2-135m-first-drafter.jsonl"
LADDER = Ladder.single([10.0, 12.0, 14.0, 16.0], 1.0, name="four")


def rounds(*accepted: int, positions: bool = False) -> Trace:
    confidence = (SlotConfidence(0.9, 2.0, 0.3),) * 3
    items = [TraceRound(confidence, 3, count, position=number) for number, count in enumerate(accepted)]
    return Trace(tuple(items), {"every_position": positions})


def test_speed_is_tokens_over_the_ladders_times() -> None:
    result = replay(make_policy("fixed:2"), rounds(0, 1, 3), LADDER)
    assert result.tokens == 1 + 2 + 3
    assert result.ms == pytest.approx(3 * (14.0 + 1.0))
    assert result.depths == {2: 3}
    plain = replay(make_policy("plain"), rounds(0, 1, 3), LADDER)
    assert (plain.tokens, plain.ms, plain.parked) == (3, 30.0, 1.0)


def test_a_trace_of_every_position_moves_by_what_is_committed() -> None:
    trace = rounds(3, 2, 1, 0, 3, 2, positions=True)
    full = replay(make_policy("full"), trace, LADDER)
    # Positions 0 (commits 4) and 4 (commits 4).
    assert (full.rounds, full.tokens) == (2, 8)
    assert replay(make_policy("fixed:1"), trace, LADDER).rounds == 3
    assert replay(make_policy("plain"), trace, LADDER).rounds == 6


def test_a_new_text_is_not_skipped() -> None:
    confidence = (SlotConfidence(0.9, 2.0, 0.3),) * 3
    items = tuple(TraceRound(confidence, 3, 3, text=number, position=0) for number in range(3))
    assert replay(make_policy("full"), Trace(items, {"every_position": True}), LADDER).rounds == 3


@pytest.mark.parametrize("ladder", [LADDER, *published_ladders()[:4]], ids=lambda ladder: ladder.name)
def test_no_rule_beats_the_oracle(ladder: Ladder) -> None:
    trace = synthetic_trace(300, slots=7, regimes=(CODE, PROSE, HARD), seed=8)
    best = simulate("oracle", trace, ladder).tokens_per_second
    for name in (*COMPARED, "best-fixed", "informed"):
        assert simulate(name, trace, ladder).tokens_per_second <= best * (1 + 1e-9)


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("ladder", published_ladders(), ids=lambda ladder: ladder.name)
def test_the_best_fixed_depth_is_the_best_of_all(ladder: Ladder, positions: bool) -> None:
    made = synthetic_trace(60, slots=7, regimes=(CODE, PROSE, HARD), seed=3)
    items = tuple(replace(item, position=number, context=40 * number) for number, item in enumerate(made.rounds))
    trace = Trace(items, {"every_position": positions})
    every = [replay(make_policy(f"fixed:{depth}"), trace, ladder).tokens_per_second for depth in range(8)]
    best = simulate("best-fixed", trace, ladder)
    assert best.tokens_per_second == max(every)
    assert best.policy == f"best-fixed ({every.index(max(every))})"


def test_bounds_need_the_truth() -> None:
    with pytest.raises(RequestError, match="synthetic"):
        simulate("informed", rounds(1, 2), LADDER)
    with pytest.raises(RequestError, match="features"):
        simulate("dscale", rounds(1, 2), LADDER)
    for name in ("oracle", "informed"):
        with pytest.raises(RequestError, match="simulate"):
            make_policy(name)


def geometric_means(trace: Trace, names: tuple[str, ...]) -> dict[str, float]:
    logs = dict.fromkeys(names, 0.0)
    ladders = published_ladders()
    for ladder in ladders:
        for name in names:
            logs[name] += math.log(simulate(name, trace, ladder).tokens_per_second)
    return {name: math.exp(total / len(ladders)) for name, total in logs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(RECORDED.parent.glob("*.jsonl")), ids=lambda path: path.stem)
def test_rate_wins_on_recorded_rounds_over_all_ladders(path: Path) -> None:
    means = geometric_means(read_trace(path), COMPARED)
    assert max(means, key=means.__getitem__) == "rate"


@pytest.mark.slow
def test_rate_is_within_six_percent_of_a_rule_that_knows_the_chances() -> None:
    trace = synthetic_trace(1500, slots=15, seed=11)
    means = geometric_means(trace, ("rate", "informed"))
    assert means["rate"] >= 0.94 * means["informed"]


def test_ladders_are_found_by_name_file_and_in_the_trace(tmp_path: Path) -> None:
    trace = Trace((), {"ladder": LADDER.to_json()})
    assert find_ladders("self", trace)[0].verify == LADDER.verify
    assert find_ladders("m1ultra-linear", trace)[0].name == "m1ultra-linear"
    assert len(find_ladders("all", trace)) == len(published_ladders())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(LADDER.to_json()))
    assert find_ladders(str(path), trace)[0].verify == LADDER.verify
    with pytest.raises(LadderError, match="m1ultra-linear"):
        find_ladders("m99", trace)
    with pytest.raises(LadderError, match="--ladder"):
        find_ladders("self", rounds(1))


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options(str(RECORDED), "--ladder", "m1ultra-linear", "--policy", "rate,full")) == 0
    table = capsys.readouterr().out
    assert "Simulated" in table and "oracle" in table and "regret" in table
    assert run(options(str(RECORDED), "--ladder", "m1ultra-linear", "--policy", "rate", "--json")) == 0
    values = json.loads(capsys.readouterr().out)
    assert values[0]["policy"] == "rate" and values[0]["regret"] > 0
    assert sum(values[0]["depths"].values()) == 1293


def test_the_command_prints_the_calibration_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options(str(RECORDED), "--calibration")) == 0
    assert "calibration error" in capsys.readouterr().out
    assert run(options(str(RECORDED), "--calibration", "--json")) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["error"] <= 0.05 < values["raw_error"]


def test_importing_the_scheduler_imports_no_mlx() -> None:
    modules = "macspec.scheduler.command, macspec.scheduler.store"
    code = f"import sys, {modules}; sys.exit(any(name.startswith('mlx') for name in sys.modules))"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=240)
