"""What a round costs now: the measured ladder, corrected slowly and within bounds by the times rounds really take."""

from __future__ import annotations

import math

from macspec.scheduler.interface import LOOKUP, RoundOutcome
from macspec.scheduler.ladder import Ladder

#: A sample is taken for at most this factor more or less than expected, so one stall cannot move the ladder.
SAMPLE_CLIP = 1.25
#: Weight of one round in the correction shared by all row counts, and in the one of its own row count.
SHARED_WEIGHT = 0.05
ROW_WEIGHT = 0.06
#: The corrections never leave these factors: beyond them the profile is wrong and has to be measured again.
SHARED_BOUND = 3.0
ROW_BOUND = 1.6
#: Contexts are rounded down to this many tokens when a curve is looked up; a ladder changes far slower.
CONTEXT_STEP = 64


class CostModel:
    """Milliseconds of the parts of a round at the present machine state.

    Args:
        ladder: what was measured.
        adapt: False keeps the ladder as it is (simulation with exact times).
    """

    def __init__(self, ladder: Ladder, *, adapt: bool = True) -> None:
        self.ladder = ladder
        self._adapt = adapt
        self._shared = 1.0
        self._rows = [1.0] * ladder.max_rows
        self._draft = 1.0
        self._overhead = ladder.overhead
        self._plain_overhead = ladder.plain_overhead
        self._bucket = -1
        self._base: list[float] = []
        self._base_draft = 0.0
        #: The corrected curve at the present context, until a correction or another context.
        self._curve: list[float] | None = None

    @property
    def max_depth(self) -> int:
        """The deepest round the ladder has a price for."""
        return self.ladder.max_rows - 1

    @property
    def overhead_ms(self) -> float:
        """Cost of a drafted round besides draft and verification."""
        return self._overhead

    @property
    def drift(self) -> float:
        """How much slower (> 1) or faster than profiled passes take at present, all row counts together."""
        return self._shared

    @property
    def suspect(self) -> bool:
        """Whether the correction sits at a bound: the profile no longer fits and should be measured again."""
        return not SHARED_BOUND**-0.9 < self._shared < SHARED_BOUND**0.9

    def verify_curve(self, context: int) -> list[float]:
        """Milliseconds of a verification pass of 1, 2, … rows, corrected. The list is shared: leave it as it is."""
        self._lookup(context)
        if self._curve is None:
            shared = self._shared
            self._curve = [base * shared * row for base, row in zip(self._base, self._rows, strict=True)]
        return self._curve

    def draft_ms(self, context: int) -> float:
        """Milliseconds of drafting one block, corrected."""
        self._lookup(context)
        return self._base_draft * self._draft

    def plain_ms(self, context: int) -> float:
        """Milliseconds of a plain step: one row, no draft."""
        self._lookup(context)
        return self._base[0] * self._shared * self._rows[0] + self._plain_overhead

    def round_ms(self, depth: int, context: int, *, drafted: bool = True) -> float:
        """Milliseconds of a round of this depth; ``depth`` is at most ``max_depth``. Replay is not included."""
        self._lookup(context)
        verify = self._base[depth] * self._shared * self._rows[depth]
        if not drafted:
            return verify + self._plain_overhead
        return verify + self._base_draft * self._draft + self._overhead

    def replay_ms(self, accepted: int, depth: int) -> float:
        """Milliseconds of re-running what was kept when ``accepted`` < ``depth``; 0 where rolling back is free."""
        if accepted >= depth or not self.ladder.replay:
            return 0.0
        return self.ladder.replay[min(accepted, len(self.ladder.replay) - 1)] * self._shared

    def observe(self, outcome: RoundOutcome) -> None:
        """Let a round's true times correct the ladder. Times that are no times (NaN, zero, negative) are left out."""
        if not self._adapt or outcome.depth > self.max_depth:
            return
        self._lookup(outcome.context)
        depth = outcome.depth
        if _usable(outcome.verify_ms):
            row = self._rows[depth]
            ratio = _clip(outcome.verify_ms / (self._base[depth] * self._shared * row), SAMPLE_CLIP)
            self._shared = _clip(self._shared * (1.0 + SHARED_WEIGHT * (ratio - 1.0)), SHARED_BOUND)
            self._rows[depth] = _clip(row * (1.0 + ROW_WEIGHT * (ratio - 1.0)), ROW_BOUND)
            self._curve = None
        if outcome.drafted and outcome.source != LOOKUP and _usable(outcome.draft_ms) and self._base_draft > 0:
            ratio = _clip(outcome.draft_ms / (self._base_draft * self._draft), SAMPLE_CLIP)
            self._draft = _clip(self._draft * (1.0 + ROW_WEIGHT * (ratio - 1.0)), SHARED_BOUND)
        other = outcome.other_ms
        if math.isfinite(other) and other >= 0:
            # A fixed share of a plain step bounds the sample: overhead is small and may start at zero.
            limit = 0.5 * self._base[0] * self._shared
            if outcome.drafted:
                other = max(0.0, other - self.replay_ms(outcome.accepted, depth))
                self._overhead += SHARED_WEIGHT * (min(other, limit) - self._overhead)
            else:
                self._plain_overhead += SHARED_WEIGHT * (min(other, limit) - self._plain_overhead)

    def _lookup(self, context: int) -> None:
        bucket = context // CONTEXT_STEP
        if bucket != self._bucket:
            self._bucket = bucket
            self._base = self.ladder.curve(bucket * CONTEXT_STEP)
            self._base_draft = self.ladder.draft_ms(bucket * CONTEXT_STEP)
            self._curve = None


def _usable(ms: float) -> bool:
    return math.isfinite(ms) and ms > 0


def _clip(value: float, factor: float) -> float:
    return min(factor, max(1.0 / factor, value))
