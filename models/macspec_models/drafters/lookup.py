"""Prompt lookup as a drafter: no model, no features; proposes what followed the last tokens earlier in the context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from macspec_models.drafters.block import Noise
from macspec_models.drafters.interface import DraftBlock, DraftContext
from macspec_models.drafters.suffix import Match, MatchRecord, SuffixIndex

#: The proposer's name in ``DraftBlock.source``.
LOOKUP = "lookup"


class LookupContext:
    """The index over one sequence, and the last proposal until the tokens that followed are known."""

    def __init__(self) -> None:
        self.index = SuffixIndex()
        self.length = 0
        self._pending: tuple[int, Match] | None = None

    @property
    def nbytes(self) -> int:
        """Nothing is held on the device."""
        return 0

    def trim(self, length: int) -> None:
        """Forget positions from ``length`` on."""
        self.length, self._pending = min(self.length, length), None
        self.index.cut(length)

    def skip(self, count: int) -> None:
        """Pass over ``count`` positions; the tokens come with the history."""
        self.length += count

    def export(self) -> list[mx.array | int | None]:
        """Nothing needs keeping: the index is made anew from the history."""
        return []

    def fill(self, parts: Sequence[mx.array | int | None], length: int) -> None:
        """Restore an exported context of ``length`` positions."""
        self.length = length

    def fork(self) -> LookupContext:
        """An independent copy; it indexes anew when first used."""
        other = LookupContext()
        other.length = self.length
        return other

    def arrays(self) -> list[mx.array]:
        """Nothing is lazy."""
        return []

    def propose(self, history: Sequence[int], limit: int, record: MatchRecord) -> Match | None:
        """Settle the last proposal against ``history``, then match its end."""
        if self._pending is not None:
            position, match = self._pending
            record.learn(match, history[position : position + len(match.tokens)])
        self.index.follow(history)
        match_now = self.index.match(limit) if limit > 0 else None
        self._pending = None if match_now is None else (len(history), match_now)
        return match_now


def lookup_block(match: Match | None, record: MatchRecord) -> DraftBlock:
    """A match as a draft; its calibrated chances stand for confidence, gap and entropy derive from them."""
    if match is None:
        return DraftBlock(mx.zeros((0,), mx.int32), mx.zeros((0, 3)), LOOKUP)
    rows = [(p, math.log(p / (1 - p)), -p * math.log(p) - (1 - p) * math.log(1 - p)) for p in record.chances(match)]
    return DraftBlock(mx.array(match.tokens, dtype=mx.int32), mx.array(rows, dtype=mx.float32), LOOKUP)


class LookupDrafter:
    """Drafts by prompt lookup alone: for a target without a drafter."""

    kind = LOOKUP
    taps: tuple[int, ...] = ()

    def __init__(self, max_depth: int = 10) -> None:
        self.max_depth = max_depth
        self.record = MatchRecord()

    def new_context(self) -> LookupContext:
        """An empty context."""
        return LookupContext()

    def extend(self, context: DraftContext, features: mx.array) -> None:
        """Count committed positions; the features are not read and may be ``[n, 0]``."""
        cast(LookupContext, context).length += features.shape[0]

    def draft(
        self,
        context: DraftContext,
        anchor: int,
        history: Sequence[int],
        *,
        limit: int | None = None,
        noise: Noise | None = None,
    ) -> DraftBlock:
        """Propose what followed the longest earlier match; nothing when there is none. See ``Drafter.draft``."""
        count = self.max_depth if limit is None else max(0, min(limit, self.max_depth))
        return lookup_block(cast(LookupContext, context).propose(history, count, self.record), self.record)
