"""The arithmetic of one decision: which depth earns most at the going rate.

Tokens per second over a long run is a renewal-reward ratio, so the depth that maximises it maximises
``E[tokens] - rate * E[ms]`` at the rate itself (Dinkelbach 1967), not the ratio of the single round, which stops too
early in easy rounds and goes too deep in hard ones. Cost curves are jagged, so every depth is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Truncation is not worth thinking about when it saves less than this share of a pass (SGLang's D-Cut uses the same).
FLAT_SAVING = 0.12


def best_depth(
    survival: Sequence[float], verify: Sequence[float], rate: float, replay: Sequence[float] = ()
) -> tuple[int, float, float]:
    """The depth with the largest ``tokens - rate * ms``, the shallowest of equals.

    Args:
        survival: ``survival[k]`` = chance that the first ``k + 1`` draft tokens are all accepted.
        verify: ``verify[d]`` = milliseconds of a pass of depth ``d``; at least ``len(survival) + 1`` of them.
        rate: tokens per millisecond that time could earn otherwise.
        replay: ``replay[a]`` = milliseconds to keep ``a`` accepted of more; empty when free.

    Returns:
        depth, expected tokens (bonus included), expected milliseconds of verification and replay.
    """
    depth, tokens, ms = 0, 1.0, verify[0]
    best_value = 1.0 - rate * ms
    best = (0, tokens, ms)
    again = 0.0
    last = 1.0
    for k, alive in enumerate(survival):
        depth = k + 1
        tokens += alive
        if replay:
            again += (last - alive) * replay[min(k, len(replay) - 1)]
            last = alive
        ms = verify[depth] + again
        value = tokens - rate * ms
        if value > best_value + 1e-12:
            best_value = value
            best = (depth, tokens, ms)
    return best


def is_flat(verify: Sequence[float]) -> bool:
    """Whether the cheapest pass costs within `FLAT_SAVING` of the deepest, so that full depth is never far off."""
    return 1.0 - min(verify) / verify[-1] < FLAT_SAVING


class RateMeter:
    """Tokens per millisecond the stream has been earning, with slow forgetting.

    Args:
        half_life: rounds after which a round counts half.
    """

    def __init__(self, half_life: float = 64.0) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self._tokens = 0.0
        self._ms = 0.0
        self._rounds = 0.0

    def add(self, tokens: float, ms: float) -> None:
        """Count one round."""
        self._tokens = self._tokens * self._keep + tokens
        self._ms = self._ms * self._keep + ms
        self._rounds = self._rounds * self._keep + 1.0

    def rate(self, low: float, high: float, weight: float = 6.0) -> float:
        """The rate, drawn to ``low`` while fewer than ``weight`` rounds are known, within ``[low, high]``."""
        if self._rounds <= 0.0:
            return low
        mean_ms = self._ms / self._rounds
        rate = (self._tokens + weight * mean_ms * low) / (self._ms + weight * mean_ms)
        return min(high, max(low, rate))
