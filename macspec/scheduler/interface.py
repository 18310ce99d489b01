"""The seam between the decode loop and whatever decides how deep a round verifies. No MLX here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

#: The proposer that runs no model: what it drafts costs nothing until it is verified.
LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class SlotConfidence:
    """What the drafter says of one draft token, from its own distribution over the vocabulary."""

    #: Probability of the draft token.
    probability: float
    #: Logit gap between the best and the second-best token.
    gap: float
    #: Entropy in nats.
    entropy: float


@dataclass(frozen=True, slots=True)
class RoundState:
    """What is known when a round's depth is chosen: everything but the target's result, so any rule stays lossless."""

    #: Largest depth allowed now: the block, the tokens still wanted and the context left all count.
    max_depth: int
    #: Tokens already in the caches.
    context: int
    temperature: float = 0.0
    #: One entry per draft token, first slot first; empty before the draft or when the policy needs none.
    confidence: Sequence[SlotConfidence] = ()
    #: Inputs of a trained length predictor, flat, when the policy asks for them (``needs_features``).
    features: Sequence[float] = ()
    #: Kind of proposer that made this block, where a drafter has several; their confidences are not comparable.
    source: str = ""
    #: Asked once more: only what costs no draft, such as a prompt lookup, would be proposed.
    free: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """A chosen depth and why. ``expected_*`` are the estimates it was chosen on, None where a rule makes none."""

    depth: int
    reason: str
    expected_tokens: float | None = None
    expected_ms: float | None = None


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What happened in a round. ``drafted`` is 0 for a plain step; ``accepted`` ≤ ``depth`` ≤ ``drafted``."""

    depth: int
    accepted: int
    committed: int
    drafted: int
    context: int
    draft_ms: float
    verify_ms: float
    other_ms: float
    temperature: float = 0.0
    confidence: Sequence[SlotConfidence] = ()
    #: As in `RoundState`.
    source: str = ""


class DepthPolicy(Protocol):
    """Chooses the depth of each round. One instance serves one engine; it learns across requests."""

    @property
    def name(self) -> str:
        """The name it is selected by."""
        ...

    @property
    def needs_confidence(self) -> bool:
        """Whether the loop must read the drafter's confidences back from the device."""
        ...

    def draft_limit(self, state: RoundState) -> int:
        """Draft tokens of use, at most ``state.max_depth``; 0 makes a plain step: the policy is parked.

        Asked before drafting, when ``state.confidence`` is empty.
        """
        ...

    def choose(self, state: RoundState) -> Decision:
        """Depth of this round, ``0 <= depth <= state.max_depth``. Asked once per round, parked rounds included."""
        ...

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn from a finished round."""
        ...
