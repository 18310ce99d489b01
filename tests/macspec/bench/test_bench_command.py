from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from synthetic_engines import SyntheticArm, World
from synthetic_reports import make_report

from macspec.bench import export, runner, schema, session
from macspec.bench.document import dumps, read
from macspec.bench.notices import Notice
from macspec.bench.samples import Arm, Prompt, Sample, Settings
from macspec.cli import main
from macspec.errors import MacspecError


class FakeEngine:
    """What the command reads of an engine."""

    drafter = None
    drafter_reason = ""

    @classmethod
    def load(cls, **options: object) -> FakeEngine:
        return cls()

    def info(self) -> dict[str, Any]:
        return {"model": "tiny", "revision": "", "drafter": "dflash", "dtype": "float32", "ladder": (1.0,)}

    def close(self) -> None:
        pass


class Stage:
    """Replaces the engine and the arms; ``arms`` may be changed by a test."""

    def __init__(self) -> None:
        self.world = World()
        rng = np.random.default_rng(0)
        self.arms: list[Arm] = [
            SyntheticArm("plain", 40.0, self.world, rng, noise=0.02),
            SyntheticArm("depth 3", 80.0, self.world, rng, noise=0.02, depth=3),
        ]

    def choose(self, engine: object, options: argparse.Namespace) -> tuple[list[Arm], list[Notice]]:
        return self.arms, []


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    found = Stage()
    monkeypatch.setattr("macspec.runtime.Runtime", FakeEngine)
    monkeypatch.setattr("macspec.bench.arm_choice.choose_arms", found.choose)
    monkeypatch.setattr("macspec.bench.arms.Canary", lambda: lambda: 1.0)
    monkeypatch.setattr(export, "last_file", lambda: tmp_path / "state/last.json")
    monkeypatch.chdir(tmp_path)
    return found


def test_everything_one_run_writes_agrees(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", "--prompts", "3", "--json", "a.json", "--csv", "a.csv", "--markdown"])
    assert code == 0
    result = read(tmp_path / "a.json")
    jsonschema.validate(json.loads((tmp_path / "a.json").read_text()), json.loads(schema.FILE.read_text()))
    assert (tmp_path / "a.csv").read_text() == export.to_csv(result)
    from macspec.bench.report import card

    assert capsys.readouterr().out == card(result)
    assert read(tmp_path / "state/last.json") == result
    assert result.categories == ["chat", "code", "math", "summarise", "rewrite", "json"]
    assert len(result.samples) == 6 * 3 * 2 * 2
    assert {s.sha256 for s in result.suites} and "ladder" not in result.pair
    best = result.best()
    assert best is not None and best.ratio_to_plain == pytest.approx(2.0, rel=0.05)


def test_quick_measures_every_category(stage: Stage, tmp_path: Path) -> None:
    assert main(["bench", "--quick", "--json", "q.json"]) == 0
    result = read(tmp_path / "q.json")
    assert result.quick and result.complete and result.repeats == 1
    assert len(result.categories) == 6
    assert {n.kind for n in result.warnings} <= {"load", "canary"}


def test_json_on_standard_output_is_nothing_but_json(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "chat", "--json", "-"]) == 0
    caught = capsys.readouterr()
    assert json.loads(caught.out)["format"] == "macspec-bench/1"
    assert "× plain" in caught.err


def test_interrupted_run_writes_what_it_has(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupting(SyntheticArm):
        calls = 0

        def run(self, prompt: Prompt, settings: Settings) -> Sample:
            self.calls += 1
            if self.calls == 9:
                raise KeyboardInterrupt
            return super().run(prompt, settings)

    stage.arms[1] = Interrupting("depth 3", 80.0, stage.world, np.random.default_rng(0), depth=3)
    assert main(["bench", "--json", "a.json"]) == 130
    result = read(tmp_path / "a.json")
    assert not result.complete and len(result.samples) == 15
    assert "cut short" in capsys.readouterr().out


def test_a_full_disk_loses_nothing(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "chat", "--json", "/dev/full"]) == 1
    message = capsys.readouterr().err
    assert "the disk is full" in message and str(tmp_path / "state/last.json") in message
    assert read(tmp_path / "state/last.json").results


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--suite", "poetry"], "There is no suite or file 'poetry'"),
        (["--json", "/no/such/folder/x.json"], "There is no folder"),
        (["--csv", "/"], "is a folder"),
        (["--trace", "/no/such/x"], "There is no folder"),
        (["--tokens", "3"], "must be at least 16"),
        (["--repeats", "0"], "must be at least 1"),
        (["--prompts", "-1"], "must be at least 0"),
        (["--temperature", "-1"], "use 0 to 100"),
        (["--temperature", "nan"], "use 0 to 100"),
        (["--cool-down", "-5"], "use 0 to 3600"),
        (["--ctx", "many"], "write token counts"),
        (["--ctx", "1k", "--suite", "chat"], "either --suite or --ctx"),
        (["--depth", "foo"], "--depth has 'foo'"),
        (["--policy", "luck"], "no policy 'luck'"),
        (["--url", "localhost:8080"], "write http://host:port"),
        (["--api-key-env", "MACSPEC_NO_SUCH_KEY"], "is not set"),
        (["--mlx-draft", "/no/such/folder"], "There is no folder '/no/such/folder'"),
        (["--power", "true"], "gave no watts"),
    ],
)
def test_wrong_input_is_refused_before_loading(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    def load(**options: object) -> None:
        raise AssertionError("nothing may be loaded")

    monkeypatch.setattr(FakeEngine, "load", load)
    assert main(["bench", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_silent_arm_fails_the_run_but_not_the_others(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    class Dead(SyntheticArm):
        def run(self, prompt: Prompt, settings: Settings) -> Sample:
            raise MacspecError("http://x sent nothing for 60 s; it hangs or is overloaded.")

    stage.arms.append(Dead("x", 1.0, stage.world, np.random.default_rng(0)))
    assert main(["bench", "--suite", "chat"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "it hangs or is overloaded" in shown and "depth 3" in shown


def test_show_compare_and_plot(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = make_report({"plain": 40.0, "depth 3": 90.0}, seed=1)
    slow = make_report({"plain": 40.0, "depth 3": 60.0}, seed=2)
    (tmp_path / "fast.json").write_text(dumps(fast))
    (tmp_path / "slow.json").write_text(dumps(slow))
    assert main(["bench", "compare", "fast.json", "fast.json"]) == 0
    assert main(["bench", "compare", "slow.json", "fast.json"]) == 0
    assert "faster" in capsys.readouterr().out
    assert main(["bench", "compare", "fast.json", "slow.json"]) == 1
    assert "slower" in capsys.readouterr().out
    assert main(["bench", "show", "fast.json", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("**macspec bench**")
    assert main(["bench", "show", "fast.json", "--csv", "-"]) == 0
    assert capsys.readouterr().out == export.to_csv(fast)
    assert main(["bench", "plot", "fast.json"]) == 0
    assert (tmp_path / "fast.svg").read_text().startswith("<svg")
    assert main(["bench", "plot", "fast.json", "-o", "fast.png"]) == 0
    assert (tmp_path / "fast.png").read_bytes().startswith(b"\x89PNG")
    assert main(["bench", "plot", "fast.json", "-o", "fast.gif"]) == 2
    assert "end in .svg or .png" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["bench", "show"]) == 2
    assert "There is no result yet" in capsys.readouterr().err
    assert main(["bench", "compare", "fast.json", "none.json"]) == 2


def test_temperature_compares_only_arms_with_our_noise(stage: Stage, tmp_path: Path) -> None:
    stranger = SyntheticArm("mlx_lm", 39.0, stage.world, np.random.default_rng(0), keep_rounds=0)
    stranger.answers = {f"chat-{i}": tuple(range(500, 900)) for i in range(1, 11)}
    stage.arms.append(stranger)
    assert main(["bench", "--suite", "chat", "--temperature", "0.8", "--json", "t.json"]) == 0
    result = read(tmp_path / "t.json")
    rows = {row.arm: row for row in result.results if row.category == "all"}
    assert rows["mlx_lm"].identical is None and rows["depth 3"].identical is True


def test_differences_get_their_gap(stage: Stage, tmp_path: Path) -> None:
    other = stage.arms[1]
    assert isinstance(other, SyntheticArm)
    other.answers = {"chat-1": tuple(range(5000, 5400))}
    assert main(["bench", "--suite", "chat", "--json", "d.json"]) == 0
    (difference,) = read(tmp_path / "d.json").differences
    assert (difference.prompt, difference.position, difference.gap) == ("chat-1", 0, 0.03)


def test_interrupting_the_look_at_differences_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    class Impatient(SyntheticArm):
        def gap(self, prompt: Prompt, prefix: tuple[int, ...], first: int, second: int) -> float | None:
            raise KeyboardInterrupt

    answers = {f"chat-{number}": tuple(range(5000, 5400)) for number in (1, 2)}
    stage.arms[1] = Impatient("depth 3", 80.0, stage.world, np.random.default_rng(0), depth=3, answers=answers)
    assert main(["bench", "--suite", "chat", "--json", "d.json"]) == 130
    result = read(tmp_path / "d.json")
    assert len(result.samples) == 4 * 2 * 2 and len(result.differences) == 2


def test_a_power_source_gives_tokens_per_joule(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watts = "echo 20; exec sleep 300"
    assert main(["bench", "--suite", "chat", "--power", watts, "--json", "p.json", "--csv", "p.csv"]) == 0
    result = read(tmp_path / "p.json")
    row = result.row("depth 3")
    assert row is not None and row.tok_per_joule is not None and row.tok_per_joule > 0
    own = [s for s in result.samples if s.arm == "depth 3"]
    assert row.tok_per_joule == pytest.approx(sum(s.generation_tokens for s in own) / sum(s.joules or 0 for s in own))
    assert "tokens per joule" in capsys.readouterr().out
    assert repr(row.tok_per_joule) in (tmp_path / "p.csv").read_text()


def test_a_run_against_the_clock_names_what_it_did_not_reach() -> None:
    prompts = [Prompt("a-1", "a", "x"), Prompt("b-1", "b", "x"), Prompt("a-2", "a", "x")]
    cut = Notice("cut_short", "The time limit ended the run.")
    outcome = runner.Outcome([Sample("plain", "a-1", "a")], [cut], complete=False)
    session._forgive_the_clock(outcome, prompts)
    assert not outcome.complete and [n.message for n in outcome.notices] == ["The time was over before b."]
    outcome = runner.Outcome([Sample("plain", p.id, p.category) for p in prompts[:2]], [cut], complete=False)
    session._forgive_the_clock(outcome, prompts)
    assert outcome.complete and not outcome.notices


def test_tokens_that_fit_a_quick_run() -> None:
    # Two arms, 0.1 s prefill each, 20 and 10 ms per token: 6 turns in 30 s leave 4.8 s for 0.03 s per token pair.
    samples = [
        Sample("a", "p", "c", generation_tokens=11, first_commit_s=0.1, end_s=0.3),
        Sample("b", "p", "c", generation_tokens=11, first_commit_s=0.1, end_s=0.2),
    ]
    assert runner.tokens_that_fit(samples, 30.0, 6, 2) == runner.MOST_TOKENS
    assert runner.tokens_that_fit(samples, 12.0, 6, 2) == 60
    assert runner.tokens_that_fit(samples, 24.0, 6, 4) == 60
    assert runner.tokens_that_fit(samples, 1.0, 6, 2) == runner.FEWEST_TOKENS
    assert runner.tokens_that_fit([], 10.0, 6, 2) == runner.MOST_TOKENS


@pytest.mark.model
@pytest.mark.slow
def test_ctrl_c_in_a_real_process_writes_the_result(tmp_path: Path) -> None:
    """The signal of a terminal, not an exception we raise: the file is there and valid afterwards."""
    script = (
        "import os, signal, sys\n"
        "from macspec.bench import command, runner\n"
        "answer = runner._answer\n"
        "count = 0\n"
        "def counted(arm, prompt, settings):\n"
        "    global count\n"
        "    count += 1\n"
        "    if count == 5:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return answer(arm, prompt, settings)\n"
        "runner._answer = counted\n"
        "from macspec.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["bench", "--drafter", "none", "--mlx-lm", "--suite", "chat", "--tokens", "16", "--json", "c.json"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 130, done.stderr
    result = read(tmp_path / "c.json")
    assert not result.complete and len(result.samples) == 2
    assert result.pair["model"] == "smollm2-135m"


@pytest.mark.model
@pytest.mark.slow
def test_real_bench_equals_stock_and_records_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "last_file", lambda: tmp_path / "state/last.json")
    monkeypatch.chdir(tmp_path)
    suite = tmp_path / "two.jsonl"
    suite.write_text('{"prompt": "Why is the sky blue?"}\n{"prompt": "Name three fruits and describe each."}\n')
    words = ["--suite", str(suite), "--depth", "0,2,full", "--mlx-lm", "--tokens", "24", "--repeats", "1"]
    assert main(["bench", *words, "--json", "r.json", "--trace", "t.jsonl"]) == 0
    result = read(tmp_path / "r.json")
    rows = {row.arm: row for row in result.results if row.category == "all"}
    assert all(row.identical for row in rows.values())
    assert len(rows) == 4 and all(row.tok_per_s for row in rows.values())
    from macspec.scheduler.trace import read_trace

    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.rounds and {r.tag for r in trace.rounds} == {"two"} and trace.slots >= 7
