"""The default rule: buy rows while they pay at the stream's own long-run rate, none when plain decoding is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from macspec.scheduler.cost import CostModel
from macspec.scheduler.depth import RateMeter, best_depth, is_flat
from macspec.scheduler.interface import LOOKUP, Decision, RoundOutcome, RoundState
from macspec.scheduler.parking import Mode, Parking
from macspec.scheduler.plan import DepthPlan
from macspec.scheduler.survival import SurvivalModel

#: Gives the survival table of a kind of proposer.
Tables = Callable[[str], SurvivalModel]


class RatePolicy:
    """Long-run-rate depth with calibrated survival, parking and probes.

    The rule maximises ``1 + Σ s_k - λ·T(d + 1, context)`` over all depths, λ being the stream's running tokens per
    millisecond. The draft is paid for by the time the depth is chosen, so its cost counts only in parking. After
    SpecDec++ (arXiv 2405.19715, theorem 3.1, the linear-cost case), D-Cut (arXiv 2607.14647, the measured cost table)
    and DSpark (arXiv 2607.05147, the bonus counted), with the renewal-reward objective instead of the step's ratio.

    Args:
        cost: prices on this machine.
        survival: calibration so far, or a function that gives it by kind of proposer; fresh ones by default.
    """

    name = "rate"

    def __init__(self, cost: CostModel, survival: SurvivalModel | Tables | None = None) -> None:
        self.cost = cost
        self._make: Tables = survival if callable(survival) else lambda source: SurvivalModel()
        self._tables = {"": survival} if isinstance(survival, SurvivalModel) else {}
        self.parking = Parking()
        self._meter = RateMeter()
        self._context = -1
        self._parked = False
        self._expected: float | None = None

    @property
    def needs_confidence(self) -> bool:
        return True

    @property
    def survival(self) -> SurvivalModel:
        """Calibration of a drafter that is the only proposer."""
        return self.table("")

    def table(self, source: str) -> SurvivalModel:
        """Calibration of one kind of proposer."""
        if source not in self._tables:
            self._tables[source] = self._make(source)
        return self._tables[source]

    def draft_limit(self, state: RoundState) -> int:
        limit = min(state.max_depth, self.cost.max_depth)
        if state.free:
            return max(0, limit)
        self._parked = False
        if limit <= 0:
            return 0
        if state.context < self._context:
            self.parking.new_request()
        self._context = state.context
        probe_ms = self.cost.draft_ms(state.context) + self.cost.overhead_ms
        self._parked = self.parking.next(probe_ms) is Mode.PARKED
        return 0 if self._parked else limit

    def choose(self, state: RoundState) -> Decision:
        cost = self.cost
        self._expected = None
        limit = min(state.max_depth, cost.max_depth, len(state.confidence))
        if limit <= 0:
            plain = cost.plain_ms(state.context)
            return Decision(0, "parked: plain is faster" if self._parked else "nothing to verify", 1.0, plain)
        verify = cost.verify_curve(state.context)
        plain_rate = 1.0 / cost.plain_ms(state.context)
        alive = self.table(state.source).survival(state.confidence[:limit], state.temperature)
        rate = self._meter.rate(plain_rate, max(plain_rate, self._best_rate(verify, limit)))
        replay = cost.ladder.replay
        if is_flat(verify[: limit + 1]) and not replay:
            depth, tokens, ms, why = limit, 1.0 + sum(alive), verify[limit], "flat cost: full depth"
        else:
            depth, tokens, ms = best_depth(alive, verify, rate, replay)
            why = "buys while survival pays"
        fixed = cost.draft_ms(state.context) + cost.overhead_ms
        self._expected = tokens
        if self.parking.mode is Mode.PROBE:
            why = "probe"
        return Decision(depth, f"{why} (rate {1000.0 * rate:.1f}/s)", tokens, ms + fixed)

    def plan(self, state: RoundState) -> DepthPlan | None:
        """What `choose` will decide for this state and ``state.max_depth`` drafted slots, as numbers."""
        cost = self.cost
        limit = min(state.max_depth, cost.max_depth)
        if limit <= 0:
            return None
        verify = cost.verify_curve(state.context)
        draft_ms = 0.0 if state.source == LOOKUP else cost.draft_ms(state.context)
        replay = cost.ladder.replay
        if is_flat(verify[: limit + 1]) and not replay:
            return DepthPlan.fixed(limit, draft_ms)
        plain_rate = 1.0 / cost.plain_ms(state.context)
        rate = self._meter.rate(plain_rate, max(plain_rate, self._best_rate(verify, limit)))
        price, again = [rate * ms for ms in verify], [rate * ms for ms in replay]
        return replace(self.table(state.source).plan(limit, state.temperature, price, again), draft_ms=draft_ms)

    def observe(self, outcome: RoundOutcome) -> None:
        self.cost.observe(outcome)
        ms = outcome.draft_ms + outcome.verify_ms + outcome.other_ms
        if not ms > 0.0 or ms == float("inf"):
            return
        self._meter.add(outcome.committed, ms)
        if outcome.drafted:
            self.table(outcome.source).observe(outcome)
        if not outcome.drafted or outcome.source == LOOKUP:
            # Parking is about drafts that cost something.
            self.parking.plain_round(ms)
            return
        plain_ms = self.cost.plain_ms(outcome.context)
        real = outcome.committed - ms / plain_ms
        expected = real if self._expected is None else self._expected - ms / plain_ms
        self.parking.drafted_round(expected, real, ms - plain_ms, ms, idle=outcome.depth == 0)

    def _best_rate(self, verify: list[float], limit: int) -> float:
        return max((depth + 1) / verify[depth] for depth in range(limit + 1))
