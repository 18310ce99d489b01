"""Depth rules that look at nothing but the limit: a fixed number, the whole block, none."""

from __future__ import annotations

from macspec.scheduler.interface import Decision, RoundOutcome, RoundState
from macspec.scheduler.plan import DepthPlan


class FixedPolicy:
    """Always verifies the same number of draft tokens, as engines with a set number of speculative tokens do."""

    needs_confidence = False

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._reason = f"fixed at {depth}"

    @property
    def name(self) -> str:
        return f"fixed:{self.depth}"

    def draft_limit(self, state: RoundState) -> int:
        return min(self.depth, state.max_depth)

    def choose(self, state: RoundState) -> Decision:
        return Decision(min(self.depth, state.max_depth), self._reason)

    def plan(self, state: RoundState) -> DepthPlan | None:
        """The number, before the draft is known."""
        return DepthPlan.fixed(min(self.depth, state.max_depth))

    def observe(self, outcome: RoundOutcome) -> None:
        """A fixed depth learns nothing."""


class PlainPolicy(FixedPolicy):
    """Never drafts: one token per pass."""

    def __init__(self) -> None:
        super().__init__(0)
        self._reason = "plain decoding"

    @property
    def name(self) -> str:
        return "plain"


class FullPolicy:
    """Verifies every draft token there is, as the DFlash reference implementation does (arXiv 2602.06036)."""

    name = "full"
    needs_confidence = False

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth

    def choose(self, state: RoundState) -> Decision:
        return Decision(state.max_depth, "full block")

    def plan(self, state: RoundState) -> DepthPlan | None:
        """All of them, before the draft is known."""
        return DepthPlan.fixed(state.max_depth)

    def observe(self, outcome: RoundOutcome) -> None:
        """A fixed depth learns nothing."""
