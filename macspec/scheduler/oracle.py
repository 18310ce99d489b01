"""Upper bounds for traces: a rule that knows the result, and one that knows the true chances."""

from __future__ import annotations

from collections.abc import Sequence

from macspec.scheduler.cost import CostModel
from macspec.scheduler.depth import best_depth
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState


class OraclePolicy:
    """Knows what each round of a trace will accept and buys the best depth for it; no rule can do better.

    ``name`` "oracle" knows the acceptance. "informed" knows only each slot's true conditional acceptance, as a
    perfectly calibrated drafter would (synthetic traces). Both are given the long-run rate, found by repeated replay.

    Args:
        rate: tokens per millisecond of the stream under this rule.
    """

    needs_confidence = True

    def __init__(self, cost: CostModel, rate: float, *, informed: bool = False) -> None:
        self.cost = cost
        self.rate = rate
        self._informed = informed
        self._survival: Sequence[float] = ()

    @property
    def name(self) -> str:
        return "informed" if self._informed else "oracle"

    def foresee(self, accepted: int, chances: Sequence[float]) -> None:
        """Told before each round: what full verification would accept, and the slots' true chances."""
        if not self._informed:
            self._survival = [1.0] * accepted
            return
        alive = 1.0
        survival = []
        for chance in chances:
            alive *= chance
            survival.append(alive)
        self._survival = survival

    def draft_limit(self, state: RoundState) -> int:
        if state.max_depth <= 0:
            return 0
        depth, tokens, ms = self._best(state)
        fixed = self.cost.draft_ms(state.context) + self.cost.overhead_ms
        pays = tokens - self.rate * (ms + fixed) > 1.0 - self.rate * self.cost.plain_ms(state.context)
        return state.max_depth if pays and depth > 0 else 0

    def choose(self, state: RoundState) -> Decision:
        if not state.confidence:
            return Decision(0, f"{self.name}: plain")
        depth, tokens, ms = self._best(state)
        return Decision(depth, self.name, tokens, ms)

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""

    def _best(self, state: RoundState) -> tuple[int, float, float]:
        limit = min(state.max_depth, self.cost.max_depth)
        # Only a result known to fail replays rows; with all foreseen accepted nothing is rolled back.
        return best_depth(self._survival[:limit], self.cost.verify_curve(state.context), self.rate)
