"""A model drafter and prompt lookup together: each round goes to the better buy.

Lookup flies where text is repeated (edits, quotations, re-emitted code) and is silent elsewhere. Every lookup proposal
is settled against what was really committed, also in rounds the model drafted, so its chances stay calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx

from macspec_models.drafters.block import Noise
from macspec_models.drafters.choice import ProposerChoice
from macspec_models.drafters.interface import DraftBlock, DraftContext, Drafter
from macspec_models.drafters.lookup import LookupContext, lookup_block
from macspec_models.drafters.suffix import Match, MatchRecord


class CombinedContext:
    """The model drafter's context, the lookup index, and whether the model drafted in the round that is open."""

    def __init__(self, model: DraftContext, lookup: LookupContext) -> None:
        self.model, self.lookup = model, lookup
        self.model_drafted = False

    @property
    def length(self) -> int:
        """Committed positions; the next anchor's absolute position."""
        return self.model.length

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return self.model.nbytes

    def skip(self, count: int) -> None:
        """Pass over ``count`` positions without features; see ``BlockContext.skip``."""
        model: Any = self.model
        model.skip(count)

    def export(self) -> list[mx.array | int | None]:
        """The model drafter's part; lookup needs only the history."""
        model: Any = self.model
        parts: list[mx.array | int | None] = model.export()
        return parts

    def fill(self, parts: Sequence[mx.array | int | None], length: int) -> None:
        """Restore an exported context of ``length`` positions."""
        model: Any = self.model
        model.fill(parts, length)

    def trim(self, length: int) -> None:
        """Forget positions from ``length`` on."""
        self.model.trim(length)
        self.lookup.trim(length)
        self.model_drafted = False

    def fork(self) -> CombinedContext:
        """An independent copy that shares what is immutable."""
        return CombinedContext(self.model.fork(), self.lookup.fork())

    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate so that nothing stays lazy."""
        return self.model.arrays()


class CombinedDrafter:
    """Wraps a model drafter, which reads the features. A lookup proposes at most as many tokens as the model's block.

    ``choice.draft_share`` is to be set from the measured ladder.
    """

    def __init__(self, model: Drafter) -> None:
        self.model = model
        self.record, self.choice = MatchRecord(), ProposerChoice()

    @property
    def kind(self) -> str:
        """The model drafter's kind with ``+lookup``."""
        return f"{self.model.kind}+lookup"

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs the model drafter reads."""
        return self.model.taps

    @property
    def max_depth(self) -> int:
        """Most draft tokens of either proposer."""
        return self.model.max_depth

    @property
    def nbytes(self) -> int:
        """Bytes of the model drafter's weights."""
        return int(getattr(self.model, "nbytes", 0))

    def new_context(self) -> CombinedContext:
        """An empty context."""
        return CombinedContext(self.model.new_context(), LookupContext())

    def extend(self, context: DraftContext, features: mx.array) -> None:
        """Append a round's committed positions to the model drafter's context, whoever drafted."""
        held = cast(CombinedContext, context)
        if held.model_drafted:
            # A round commits the anchor and the accepted drafts; rows of plain steps after it may come along.
            self.choice.learn(min(features.shape[0] - 1, self.model.max_depth))
            held.model_drafted = False
        self.model.extend(held.model, features)

    def draft(
        self,
        context: DraftContext,
        anchor: int,
        history: Sequence[int],
        *,
        limit: int | None = None,
        noise: Noise | None = None,
    ) -> DraftBlock:
        """Propose by the better buy; ``DraftBlock.source`` says which it was. See ``Drafter.draft``."""
        held = cast(CombinedContext, context)
        match = self._match(held, history, limit)
        if match is not None and self.choice.prefers_lookup(self.record.chances(match)):
            return lookup_block(match, self.record)
        held.model_drafted = True
        block = self.model.draft(held.model, anchor, history, limit=limit, noise=noise)
        return DraftBlock(block.tokens, block.confidence, self.model.kind)

    def draft_free(self, context: DraftContext, history: Sequence[int], *, limit: int) -> DraftBlock:
        """What prompt lookup proposes; the model does not draft. See ``FreeDrafter.draft_free``."""
        return lookup_block(self._match(cast(CombinedContext, context), history, limit), self.record)

    def _match(self, held: CombinedContext, history: Sequence[int], limit: int | None) -> Match | None:
        held.model_drafted = False
        count = self.max_depth if limit is None else max(0, min(limit, self.max_depth))
        return held.lookup.propose(history, count, self.record)


def without_lookup(drafter: Drafter | None) -> Drafter | None:
    """The model drafter of a combined one; any other drafter, or None, is returned as it is."""
    return drafter.model if isinstance(drafter, CombinedDrafter) else drafter
