"""Which kernels are used: off, on after they proved themselves here, or forced; and off for good once one fails.

The library answers one question, `uses(case)`, in a dictionary look-up. Everything slow happens in `prepare`. A case
that was not prepared is not used (in ``probe`` mode), so a round never waits for a compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TypeVar

import mlx.core as mx

from macspec.engine.memory import device_failure
from macspec.kernels.calls import Kernels
from macspec.kernels.probe import MARGIN, Case, Device, MlxDevice, probe
from macspec.kernels.verdicts import RIGHT, Outcome, Verdict, VerdictStore

T = TypeVar("T")


class Mode(StrEnum):
    """``--kernels``."""

    OFF = "off"
    PROBE = "probe"
    FORCE = "force"


class KernelLibrary:
    """Selection of kernels for one engine.

    Args:
        kernels: the kernels of this machine, None where there are none (Linux without the executor): nothing is used.
        store: None keeps verdicts for this process only.
        exact: prefer the same bits for every row count to speed: a kernel is used for all its row counts as soon as it
            is right for all of them, and for none otherwise.
        box_s: seconds one case may take. budget_s: seconds one `prepare` may take; the rest is left for the next start.
    """

    def __init__(
        self,
        mode: Mode | str,
        kernels: Kernels | None,
        *,
        device: Device | None = None,
        store: VerdictStore | None = None,
        exact: bool = False,
        box_s: float = 3.0,
        budget_s: float = 30.0,
    ) -> None:
        self.mode, self.exact = Mode(mode), exact
        self.kernels = kernels if self.mode is not Mode.OFF else None
        self.box_s, self.budget_s = box_s, budget_s
        self._device: Device = device or MlxDevice()
        self._store = store
        self._cases: dict[str, Case] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._used: dict[str, bool] = {}
        self._ranking: dict[str, float] = {}
        #: Cases whose results nobody has waited for, in order: the suspects when a round fails.
        self._active: dict[str, None] = {}
        self._resting = False
        #: int32 [1] row count of the pass being built when its depth is decided on the device, None otherwise: rows
        #: from there on are not computed by the kernels, and what becomes of them is undefined.
        self.row_count: mx.array | None = None

    def uses(self, case: str) -> bool:
        """Whether the kernel runs for this case (`Case.name`); remembers that it did."""
        if self.kernels is None or self._resting:
            return False
        used = self._used.get(case)
        if used is None:
            used = self._used[case] = self.mode is Mode.FORCE and case not in self._verdicts
        if used:
            self._active[case] = None
        return used

    def best(self, *cases: str) -> int | None:
        """Index of the case to run among rivals for the same work, None for MLX's own op.

        The largest ratio wins; in exact mode the largest mean ratio over all row counts, so that one kernel runs for
        every row count. Unraced rivals (``force``) rank in the order given.
        """
        order = sorted(range(len(cases)), key=lambda i: -self._ranking.get(cases[i], 0.0))
        return next((i for i in order if self.uses(cases[i])), None)

    def prepare(self, cases: Iterable[Case], progress: Callable[[str, int, int], None] | None = None) -> None:
        """Decide every case: from the store where it knows it, by a probe otherwise, within the time budget.

        Args:
            progress: gets (case name, number done, number of cases).
        """
        todo = {case.name: case for case in cases}
        self._cases |= todo
        if self.kernels is None:
            return
        begin = self._device.now()
        for number, (name, case) in enumerate(todo.items()):
            if progress is not None:
                progress(name, number, len(todo))
            known = self._verdicts.get(name) or (self._store and self._store.get(name, case.digest))
            if known:
                self._verdicts[name] = known
            elif self.mode is Mode.PROBE and self._device.now() - begin < self.budget_s:
                if self._store is not None:
                    self._store.begin(name, case.digest)
                self._decide(name, probe(case, self._device, self.box_s))
        self._select()

    @property
    def active(self) -> tuple[str, ...]:
        """The cases that took part since the last `guard` began or `settle` was called."""
        return tuple(self._active)

    def settle(self) -> None:
        """What was asked for has run: none of it can be to blame for a later failure."""
        self._active.clear()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """No kernel takes part in what is built inside: a prompt's passes, which nobody could undo and repeat."""
        before, self._resting = self._resting, True
        try:
            yield
        finally:
            self._resting = before

    def guard(self, run: Callable[[], T], undo: Callable[[], None], suspects: Iterable[str] = ()) -> T:
        """Run a round and wait for it in ``run``; when kernels make it fail, disable them and run it again without.

        Args:
            run: builds and evaluates the round. undo: puts everything back to where the round began.
            suspects: cases that took part in what ``run`` waits for, besides those it asks for itself.

        Raises:
            RuntimeError, ValueError: the failure, when no kernel took part or the second attempt fails too. MLX raises
                the latter, too, when it evaluates: for a threadgroup the device refuses. Lack of memory and a device
                that takes no more work are nobody's fault and always raised.
        """
        self._active = dict.fromkeys(suspects)
        try:
            return run()
        except (RuntimeError, ValueError) as error:
            failure = device_failure(error)
            blameless = failure is not None and (failure.fatal or failure.memory)
            if blameless or not self.disable_active(error):
                raise
        undo()
        return run()

    def disable_active(self, error: BaseException) -> list[str]:
        """Disable, for good, every case that took part since the round began; their names."""
        names = list(self._active)
        self._active.clear()
        for name in names:
            case = self._cases.get(name)
            reason = f"It failed in use: {(str(error).strip().splitlines() or [type(error).__name__])[0][:200]}"
            self._decide(name, Verdict(Outcome.FAILED, reason, case.digest if case else ""))
            self._used[name] = False
        if names:
            self._select()
        return names

    def table(self) -> list[dict[str, Any]]:
        """One row per case for ``doctor --kernels``: case, used, outcome, ratio, max_error, reason."""
        rows = []
        for name in self._cases:
            verdict = self._verdicts.get(name)
            rows.append(
                {
                    "case": name,
                    "used": self._used.get(name, False),
                    "outcome": str(verdict.outcome) if verdict else "not probed",
                    "ratio": verdict.ratio if verdict else None,
                    "max_error": verdict.max_error if verdict else None,
                    "reason": verdict.reason if verdict else "",
                }
            )
        return rows

    @property
    def summary(self) -> str:
        """Name of the kernel set for profiles: the cost ladder belongs to it."""
        used = sorted({name.split(" ", 1)[0] for name, yes in self._used.items() if yes})
        return "+".join(["mlx", *used]) + (" exact" if self.exact and used else "")

    def _decide(self, name: str, verdict: Verdict) -> None:
        self._verdicts[name] = verdict
        if self._store is not None:
            self._store.put(name, verdict)

    def _family(self, case: Case) -> list[str]:
        """The cases that differ from this one in the row count only."""
        key = (case.kernel, case.shape, case.dtype)
        return [name for name, other in self._cases.items() if (other.kernel, other.shape, other.dtype) == key]

    def _select(self) -> None:
        for name, case in self._cases.items():
            family = self._family(case) if self.exact or case.together else [name]
            verdicts = [self._verdicts.get(member) for member in family]
            ratios = [v.ratio for v in verdicts if v is not None and v.ratio]
            self._ranking[name] = sum(map(math.log, ratios)) / len(ratios) if ratios else 0.0
            if self.mode is Mode.FORCE:
                self._used[name] = not any(v and v.outcome in (Outcome.FAILED, Outcome.CRASHED) for v in verdicts)
            elif self.exact or case.together:
                right = all(v is not None and v.outcome in RIGHT for v in verdicts)
                self._used[name] = right and (self.exact or self._ranking[name] >= math.log(MARGIN))
            else:
                self._used[name] = verdicts[0] is not None and verdicts[0].outcome is Outcome.WINS


def kernels_here() -> Kernels | None:
    """The kernels on this machine's GPU, None without Metal. M1 and M2 get threadgroups of at most 512 threads."""
    if not mx.metal.is_available():
        return None
    architecture = str(mx.device_info().get("architecture", ""))
    return Kernels(max_threads=512 if "g13" in architecture or "g14" in architecture else 1024)


def library_here(mode: Mode | str, *, exact: bool = False) -> KernelLibrary:
    """The library of this machine with verdicts kept in the user's cache directory."""
    import platform
    from importlib import metadata

    kernels = kernels_here()
    store = None
    if kernels is not None:
        info = mx.device_info()
        identity = {
            "chip": str(info.get("device_name", info.get("architecture", ""))),
            "os": platform.platform(),
            "mlx": metadata.version("mlx"),
        }
        store = VerdictStore(identity)
    return KernelLibrary(mode, kernels, store=store, exact=exact)
