"""Selection with a scripted device: every way a probe and a round can end."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from metalcpu import metal_kernel, options

from macspec.kernels import cases, round_cases
from macspec.kernels.calls import Kernels
from macspec.kernels.library import KernelLibrary, kernels_here, library_here
from macspec.kernels.probe import Case, MlxDevice
from macspec.kernels.verdicts import Outcome, VerdictStore

IDENTITY = {"chip": "Apple M9", "os": "macOS 30", "mlx": "0.40.0"}


class ScriptedDevice:
    """A device whose clock, answers and race are written by the test."""

    def __init__(self, **script) -> None:
        self.clock, self.asked, self.script = 0.0, [], script

    def now(self) -> float:
        return self.clock

    def evaluate(self, function: Callable, arrays) -> np.ndarray:
        answer = self.script.get(function.__name__, 1.0)
        if function.__name__ == "ours":
            self.asked.append("ours")
            self.clock += self.script.get("seconds", 0.0)
        if isinstance(answer, BaseException):
            raise answer
        return np.full(4, answer)

    def race(self, case: Case, budget_s: float) -> tuple[float, float]:
        self.asked.append("race")
        self.clock += self.script.get("race_seconds", 0.0)
        return self.script.get("times", (1.0, 2.0))


def ours(*_):
    raise AssertionError("a scripted device runs nothing")


def stock(*_):
    raise AssertionError("a scripted device runs nothing")


def reference(*_):
    raise AssertionError("a scripted device runs nothing")


def first_row(*_):
    raise AssertionError("a scripted device runs nothing")


def case(rows=4, digest="abc", kernel="verify_qmm", **changes) -> Case:
    return Case(
        kernel, "8x64 4-bit g64", "float16", rows, digest, lambda i: [], ours, stock, reference, 1e-2, **changes
    )


def library(tmp_path=None, identity=IDENTITY, mode="probe", device=None, **options) -> KernelLibrary:
    store = VerdictStore(identity, tmp_path) if tmp_path is not None else None
    return KernelLibrary(mode, Kernels(lambda **_: None), device=device or ScriptedDevice(), store=store, **options)


def outcome(chosen: KernelLibrary, probed: Case) -> tuple[bool, str, str]:
    chosen.prepare([probed])
    (row,) = chosen.table()
    assert chosen.uses(probed.name) == row["used"]
    return row["used"], row["outcome"], row["reason"]


def test_pass_and_win():
    used, how, reason = outcome(library(), case())
    assert used and how == "wins" and "1.000 ms against 2.000 ms" in reason


def test_pass_and_lose():
    for times in ((2.0, 1.0), (1.0, 1.0), (1.0, 1.01)):
        used, how, _ = outcome(library(device=ScriptedDevice(times=times)), case())
        assert not used and how == "slower"


@pytest.mark.parametrize("value", [1.2, float("nan"), float("inf")])
def test_wrong_numbers_are_never_raced(value):
    device = ScriptedDevice(ours=value)
    used, how, reason = outcome(library(device=device), case())
    assert not used and how == "wrong" and "variant 0" in reason and "race" not in device.asked


def test_a_row_that_depends_on_the_row_count_is_wrong():
    used, how, reason = outcome(library(device=ScriptedDevice(first_row=1.001)), case(first_row=first_row))
    assert not used and how == "wrong" and "depend on the number of rows" in reason
    assert outcome(library(), case(first_row=first_row))[0]


def test_compile_error():
    device = ScriptedDevice(ours=RuntimeError("[metal] Unable to build metal library\nprogram_source:3:1: error"))
    used, how, reason = outcome(library(device=device), case())
    assert not used and how == "error" and "Unable to build" in reason and "program_source" not in reason


def test_stall_past_the_time_box():
    device = ScriptedDevice(seconds=105.0)
    used, how, reason = outcome(library(device=device, box_s=3.0), case())
    assert not used and how == "stalled" and "105.0 s" in reason and device.asked == ["ours"]
    used, how, _ = outcome(library(device=ScriptedDevice(race_seconds=9.0), box_s=3.0), case())
    assert not used and how == "stalled"


def test_a_crash_of_the_process_is_found_at_the_next_start(tmp_path):
    device = ScriptedDevice(ours=KeyboardInterrupt())  # whatever ends the process in the middle of a probe
    with pytest.raises(KeyboardInterrupt):
        library(tmp_path, device=device).prepare([case()])
    device = ScriptedDevice()
    used, how, reason = outcome(library(tmp_path, device=device), case())
    assert not used and how == "crashed" and "ended while" in reason and device.asked == []
    assert outcome(library(tmp_path), case(rows=8))[0]  # the other cases are still tried


DYING = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_library import ScriptedDevice, case, library

class Dying(ScriptedDevice):
    def evaluate(self, function, arrays):
        os.kill(os.getpid(), 9)

library(Path(sys.argv[1]), device=Dying()).prepare([case(), case(rows=8)])
"""


def test_a_killed_process_costs_the_case_it_was_killed_in(tmp_path):
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "metal")]
    died = subprocess.run([sys.executable, "-c", DYING, str(tmp_path), *folders], capture_output=True, check=False)
    assert died.returncode == -9, died.stderr.decode()
    chosen = library(tmp_path)
    chosen.prepare([case(), case(rows=8)])
    assert [row["outcome"] for row in chosen.table()] == ["crashed", "wins"]


def test_verdicts_are_kept_and_reused(tmp_path):
    assert outcome(library(tmp_path), case())[0]
    device = ScriptedDevice(times=(2.0, 1.0))
    assert outcome(library(tmp_path, device=device), case())[0] and device.asked == []
    assert json.loads((tmp_path / "kernels.json").read_text())["started"] is None


def test_verdicts_are_stale_after_an_upgrade_or_an_edit(tmp_path):
    outcome(library(tmp_path), case())
    newer = VerdictStore({**IDENTITY, "mlx": "0.41.0"}, tmp_path)
    assert newer.verdicts == {} and newer.stale == "mlx changed from 0.40.0 to 0.41.0."
    device = ScriptedDevice(times=(2.0, 1.0))
    assert outcome(library(tmp_path, {**IDENTITY, "mlx": "0.41.0"}, device=device), case())[1] == "slower"
    assert outcome(library(tmp_path, {**IDENTITY, "mlx": "0.41.0"}), case(digest="edited"))[1] == "wins"


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"schema": 9}', '{"schema": 1, "identity": 3}'])
def test_a_damaged_file_is_forgotten(tmp_path, text):
    (tmp_path / "kernels.json").write_text(text)
    store = VerdictStore(IDENTITY, tmp_path)
    assert store.verdicts == {} and store.stale
    assert outcome(library(tmp_path), case())[0]


def test_run_time_failure_retries_the_round_without_the_kernel_and_for_good(tmp_path):
    chosen = library(tmp_path)
    chosen.prepare([case(), case(rows=8)])
    undone: list[str] = []

    def round_() -> list[int]:
        if chosen.uses(case().name):
            raise RuntimeError("[METAL] Command buffer execution failed")
        return [1, 2, 3]

    assert chosen.guard(round_, lambda: undone.append("undo")) == [1, 2, 3] and undone == ["undo"]
    assert not chosen.uses(case().name) and chosen.uses(case(rows=8).name)
    assert [row["outcome"] for row in chosen.table()] == ["failed at run time", "wins"]
    again = library(tmp_path)
    assert outcome(again, case())[1] == "failed at run time"  # and stays off in the next process


def test_a_failure_without_kernels_is_not_hidden():
    chosen = library()

    def round_() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        chosen.guard(round_, lambda: None)


def test_a_failing_generation_gives_the_same_text():
    """Three rounds of a real product; the kernel dies in the second."""
    packed = mx.quantize(mx.random.normal((16, 64), key=mx.random.key(0)), group_size=64, bits=4)
    real, rounds, out = Kernels(metal_kernel), [mx.random.normal((2, 64), key=mx.random.key(k)) for k in range(3)], []
    chosen = KernelLibrary("force", real)

    def one(x: mx.array, number: int) -> list[int]:
        if chosen.uses("verify_qmm case"):
            if number == 1:
                raise RuntimeError("[METAL] Command buffer execution failed")
            y = real.verify_qmm(x, *packed, group_size=64, bits=4)
        else:
            y = mx.quantized_matmul(x, *packed, transpose=True, group_size=64, bits=4)
        return mx.argmax(y, axis=-1).tolist()

    with options(strict=True):
        for number, x in enumerate(rounds):
            out.append(chosen.guard(lambda x=x, number=number: one(x, number), lambda: None))
    stock_rounds = [
        mx.argmax(mx.quantized_matmul(x, *packed, transpose=True, group_size=64, bits=4), -1) for x in rounds
    ]
    assert out == [y.tolist() for y in stock_rounds] and not chosen.uses("verify_qmm case")


def test_modes():
    assert not outcome(library(mode="off"), case())[0]
    device = ScriptedDevice(ours=5.0)
    assert outcome(library(mode="force", device=device), case())[0] and device.asked == []
    assert library(mode="force").uses("never prepared") and not library().uses("never prepared")
    assert not KernelLibrary("force", None).uses("no kernels here")
    with pytest.raises(ValueError, match="sometimes"):
        library(mode="sometimes")


def test_exact_mode_needs_every_row_count_right_and_none_fast():
    slow = library(exact=True, device=ScriptedDevice(times=(2.0, 1.0)))
    slow.prepare([case(1), case(4)])
    assert slow.uses(case(1).name) and slow.uses(case(4).name) and slow.summary == "mlx+verify_qmm exact"

    class WrongAtFour(ScriptedDevice):
        def evaluate(self, function, arrays):
            return np.full(4, 9.0 if arrays and function.__name__ == "ours" else 1.0)

    mixed = library(exact=True, device=WrongAtFour())
    four = Case("verify_qmm", "8x64 4-bit g64", "float16", 4, "abc", lambda i: [1], ours, stock, reference, 1e-2)
    mixed.prepare([case(1), four, case(1, kernel="keyed_choice")])
    assert not mixed.uses(case(1).name) and not mixed.uses(four.name)
    assert mixed.uses(case(1, kernel="keyed_choice").name)
    slow.guard(lambda: slow.uses(case(4).name), lambda: None)
    slow.disable_active(RuntimeError("died"))
    assert not slow.uses(case(1).name)  # one row count failed, so all of them are off


def test_the_budget_leaves_the_rest_for_the_next_start(tmp_path):
    device = ScriptedDevice(seconds=1.0)
    chosen, seen = library(tmp_path, device=device, box_s=10, budget_s=4.0), []
    chosen.prepare([case(r) for r in (1, 2, 3)], progress=lambda *a: seen.append(a))
    assert [row["outcome"] for row in chosen.table()] == ["wins", "wins", "not probed"]
    assert seen[1] == (case(2).name, 1, 3) and not chosen.uses(case(3).name)
    later = library(tmp_path)
    later.prepare([case(r) for r in (1, 2, 3)])
    assert all(row["outcome"] == Outcome.WINS for row in later.table())


def test_the_faster_of_two_rivals_runs_and_in_exact_mode_the_same_for_every_row_count():
    class TwoKernels(ScriptedDevice):
        def race(self, case, budget_s):
            few = case.rows == 1
            return (1.0, 2.0 if few else 1.1) if case.kernel == "verify_qmm" else (1.0, 0.9 if few else 5.0)

    rivals = [case(rows, kernel=kernel) for rows in (1, 16) for kernel in ("verify_qmm", "verify_qmm_matrix")]
    names = [c.name for c in rivals]
    fast, exact = library(device=TwoKernels()), library(device=TwoKernels(), exact=True)
    fast.prepare(rivals)
    exact.prepare(rivals)
    assert (fast.best(*names[:2]), fast.best(*names[2:])) == (0, 1)
    assert (exact.best(*names[:2]), exact.best(*names[2:])) == (1, 1)
    assert library(mode="force").best(*names[:2]) == 0 and library(mode="off").best(*names[:2]) is None
    fast.guard(lambda: fast.best(*names[2:]), lambda: None)
    fast.disable_active(RuntimeError("died"))
    assert fast.best(*names[2:]) == 0  # the other one takes over


def test_without_metal_there_are_no_kernels():
    assert kernels_here() is None
    here = library_here("probe")
    here.prepare([case()])
    assert not here.uses(case().name) and here.summary == "mlx"


def test_real_cases_pass_on_the_executor():
    """The cases a model gives rise to, through the same probe that runs on a Mac (whose race is skipped here)."""

    class Executor(MlxDevice):
        def race(self, case, budget_s):
            return 1.0, 2.0

    kernels = Kernels(metal_kernel)
    chosen = KernelLibrary("probe", kernels, device=Executor(), box_s=1e6, budget_s=1e6)
    wanted = [
        *cases.qmm_cases(kernels, 12, 128, cases.Format(64, 4), mx.bfloat16)[2::10],
        *cases.qmm_cases(kernels, 12, 128, cases.Format(16, 4, "nvfp4"), mx.bfloat16)[2::10],
        *cases.moe_cases(kernels, 4, 2, 12, 64, cases.Format(64, 4), mx.bfloat16, True)[2:3],
        *cases.moe_cases(kernels, 4, 2, 12, 64, cases.Format(32, 4, "mxfp4"), mx.bfloat16, False)[2:3],
        *round_cases.choice_cases(kernels, 700, mx.bfloat16)[2::10],
        *round_cases.confidence_cases(kernels, 700)[2:3],
        *round_cases.replay_cases(kernels, 1, 2, 4, 32, mx.bfloat16)[2:3],
        *cases.attention_cases(kernels, 4, 2, 64, mx.bfloat16, contexts=(70,))[2:3],
        *cases.quantised_cases(kernels, 4, 2, 64, mx.bfloat16, group_size=64, bits=8, contexts=(70,))[2:3],
    ]
    with options(require_outputs=False):
        chosen.prepare(wanted)
    assert all(row["used"] for row in chosen.table()), chosen.table()
    assert all(0 <= row["max_error"] < 1 for row in chosen.table())


def test_the_race_takes_its_time_and_no_more():
    packed = mx.quantize(mx.random.normal((16, 64)), group_size=64, bits=4)

    def product(x, *w):
        return mx.quantized_matmul(x, *w, transpose=True, group_size=64, bits=4)

    raced = Case("k", "s", "float32", 1, "d", lambda i: [mx.ones((1, 64)), *packed], product, product, product, 1e-3)
    first, second = MlxDevice().race(raced, 0.05)
    assert first > 0 and second > 0


def test_buckets():
    assert [cases.rows_bucket(r) for r in (1, 5, 7, 9, 16)] == [1, 5, 8, 10, 16]
    assert [cases.context_bucket(n) for n in (1, 1024, 1025, 99_999)] == [1024, 1024, 4096, 16384]
