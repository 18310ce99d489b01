"""A depth rule as numbers: a device can decide a round's depth before the host has seen the draft. No MLX here."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class DepthPlan:
    """What a rule will choose once the drafter's probabilities are known.

    The depth is the shallowest with the largest ``1 + s_1 + ... + s_d - price[d] - (s_0 - s_1) again[0] - ...``, where
    ``s_k`` is the product of the first k chances and the chance of slot k comes from `chance`.

    Attributes:
        price: what a pass of depth d costs, in tokens; one entry more than there are slots.
        edges, mids: upper edges of the probability bins but the last, and the logit in the middle of each bin.
        logits: calibrated logit in the middle of every bin, per slot.
        slope, bias, bound: of the line through a bin, and the largest size of a logit.
        again: cost in tokens of keeping k accepted drafts of more; empty when free.
        draft_ms: expected time of the draft, which a round with one wait cannot tell from its verification.
    """

    price: tuple[float, ...]
    edges: tuple[float, ...] = ()
    mids: tuple[float, ...] = (0.0,)
    logits: tuple[tuple[float, ...], ...] = ()
    slope: float = 1.0
    bias: float = 0.0
    bound: float = math.inf
    again: tuple[float, ...] = ()
    draft_ms: float = 0.0

    #: Probabilities are taken to lie between these.
    LEAST, MOST = 0.001, 0.9998

    @classmethod
    def fixed(cls, depth: int, draft_ms: float = 0.0) -> DepthPlan:
        """Always ``depth``."""
        return cls(price=tuple([0.0] * depth + [-float(depth + 2)]), draft_ms=draft_ms)

    @property
    def slots(self) -> int:
        """The deepest depth it can choose."""
        return len(self.price) - 1

    @property
    def constant(self) -> bool:
        """Whether the draft makes no difference."""
        return not self.logits

    def chance(self, slot: int, probability: float) -> float:
        """Chance that the draft token of ``slot`` is accepted when those before it are."""
        column = bisect_right(self.edges, probability)
        p = min(max(probability, self.LEAST), self.MOST)
        x = self.logits[slot][column] + self.slope * (math.log(p / (1.0 - p)) - self.mids[column]) + self.bias
        return 1.0 / (1.0 + math.exp(-min(max(x, -self.bound), self.bound)))

    def depth(self, probabilities: Sequence[float]) -> int:
        """The depth for a draft with these probabilities, one per slot."""
        if self.constant:
            return self.slots
        chances = (self.chance(slot, p) for slot, p in enumerate(probabilities[: self.slots]))
        alive = list(accumulate(chances, lambda s, c: s * c, initial=1.0))
        values, gain, spent = [-self.price[0]], 0.0, 0.0
        for k in range(1, len(alive)):
            gain += alive[k]
            if self.again:
                spent += (alive[k - 1] - alive[k]) * self.again[min(k - 1, len(self.again) - 1)]
            values.append(gain - self.price[k] - spent)
        return max(range(len(values)), key=lambda d: (values[d], -d))
