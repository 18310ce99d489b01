"""Prove one kernel case on the device: does it compile, is it right, is it faster?

The device is an argument, so that every way a probe can end is tested without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from macspec.kernels.verdicts import Outcome, Verdict

Arrays = Sequence[mx.array]

#: A kernel must beat the stock op by this much to be used; below it the difference is noise.
MARGIN = 1.02


@dataclass(frozen=True)
class Case:
    """One kernel at one shape, dtype and row count.

    inputs: arrays of variant i; variants 0..variants-1 are checked (random first, then adversarial), and every i gives
        arrays of the same shapes with other values, so that a race can rotate weights.
    ours, stock: from those arrays to one output whose first axis, or second where it has length 1, is rows.
    reference: the same in float32 on the CPU, the truth both are judged by.
    first_row: the kernel run on the first row alone; its bits must equal those among many. None: not checked.
    tolerance: allowed error relative to the largest value of the reference.
    together: the kernel runs for every row count or for none, because plain and speculative rounds must not mix it with
        the stock op.
    """

    kernel: str
    shape: str
    dtype: str
    rows: int
    digest: str
    inputs: Callable[[int], Arrays]
    ours: Callable[..., mx.array]
    stock: Callable[..., mx.array]
    reference: Callable[..., mx.array]
    tolerance: float
    first_row: Callable[..., mx.array] | None = None
    variants: int = 3
    together: bool = False

    @property
    def name(self) -> str:
        """Key of the case in tables and on disk."""
        return f"{self.kernel} {self.shape} {self.dtype} rows {self.rows}"


class Device(Protocol):
    """What a probe needs of a machine."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""

    def evaluate(self, function: Callable[..., mx.array], arrays: Arrays) -> np.ndarray[Any, Any]:
        """Run and wait; float64 values. RuntimeError when it does not compile or run."""

    def race(self, case: Case, budget_s: float) -> tuple[float, float]:
        """Milliseconds per call of the kernel and of the stock op, within about ``budget_s`` seconds."""


class MlxDevice:
    """The GPU through MLX."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""
        return time.monotonic()

    def evaluate(self, function: Callable[..., mx.array], arrays: Arrays) -> np.ndarray[Any, Any]:
        """Run and wait; float64 values."""
        return np.array(function(*arrays).astype(mx.float32)).astype(np.float64)

    def race(self, case: Case, budget_s: float) -> tuple[float, float]:
        """Alternate dependent chains of both ops over rotating weights; the fastest chain of each counts.

        Dependent, because independent calls overlap on the GPU and hide each other's latency; rotated, because one
        weight matrix would stay in the cache, which the weights of a whole model do not.
        """
        sets = [case.inputs(i) for i in range(3)]
        mx.eval(*(a for arrays in sets for a in arrays))

        def chain(function: Callable[..., mx.array], calls: int) -> float:
            begin = time.perf_counter()
            first = sets[0][0]
            for i in range(calls):
                out = function(first, *sets[i % len(sets)][1:])
                first = sets[0][0] + (0 * out.reshape(-1)[0]).astype(first.dtype)
            mx.eval(first)
            return 1e3 * (time.perf_counter() - begin) / calls

        end = time.monotonic() + budget_s
        calls = 8
        while chain(case.stock, calls) * calls < 5.0 and calls < 512 and time.monotonic() < end:
            calls *= 2
        ours, stock = [chain(case.ours, calls)], [chain(case.stock, calls)]
        while len(ours) < 12 and time.monotonic() < end:
            ours.append(chain(case.ours, calls))
            stock.append(chain(case.stock, calls))
        return min(ours), min(stock)


def probe(case: Case, device: Device, box_s: float) -> Verdict:
    """Compile, compare, race; never longer than the device itself takes for one call past ``box_s`` seconds."""
    begin = device.now()
    worst = 0.0

    def ended(outcome: Outcome, reason: str, ratio: float | None = None) -> Verdict:
        return Verdict(outcome, reason, case.digest, ratio, worst)

    def late() -> Verdict | None:
        spent = device.now() - begin
        if spent <= box_s:
            return None
        return ended(Outcome.STALLED, f"The probe took {spent:.1f} s, {box_s:.0f} s were allowed.")

    try:
        for variant in range(case.variants):
            arrays = case.inputs(variant)
            found = device.evaluate(case.ours, arrays)
            if stalled := late():
                return stalled
            truth = device.evaluate(case.reference, arrays)
            scale = max(float(np.abs(truth).max(initial=0.0)), 1e-30)
            error = float(np.abs(found - truth).max(initial=0.0)) if found.shape == truth.shape else np.inf
            share = error / (case.tolerance * scale)
            worst = share if not share <= worst else worst  # not-a-number counts as worst
            if not share <= 1.0:
                reason = f"Its error is {share:.3g} times the bound on input variant {variant}."
                return ended(Outcome.WRONG, reason)
            if case.first_row is not None:
                alone = device.evaluate(case.first_row, arrays).reshape(-1)
                if not np.array_equal(alone, found.reshape(-1)[: alone.size]):
                    return ended(Outcome.WRONG, f"A row's bits depend on the number of rows (variant {variant}).")
        if stalled := late():
            return stalled
        ours, stock = device.race(case, max(0.1, box_s - (device.now() - begin)))
    except (RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return ended(Outcome.ERROR, f"It does not run here: {lines[0][:200]}")
    if stalled := late():
        return stalled
    ratio = stock / ours if ours > 0 else float("inf")
    outcome = Outcome.WINS if ratio >= MARGIN else Outcome.SLOWER
    return ended(outcome, f"{ours:.3f} ms against {stock:.3f} ms for MLX's own op.", ratio)
