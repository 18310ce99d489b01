"""Whether slightly different logits could have chosen another token."""

from __future__ import annotations

import functools
import math

import mlx.core as mx

from macspec.engine.processors import HEAD, best_tokens


def contested(scores: mx.array, choices: mx.array, slack: float) -> mx.array:
    """Whether another token's score comes within ``slack`` of the chosen one's, or above it: bool ``[rows]``.

    Args:
        scores: ``[rows, vocab]``. choices: chosen tokens ``[rows]``.
        slack: most by which the difference of any two scores may be wrong.
    """
    own = mx.take_along_axis(scores, choices.astype(mx.uint32)[:, None], axis=-1)
    return mx.sum(scores >= own - slack, axis=-1) > 1


def contested_draw(
    scores: mx.array,
    noise: mx.array,
    choices: mx.array,
    slack: float,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> mx.array:
    """`contested` for a draw: noise counts, and so do tokens that truncation might keep, or drop, after all.

    Args:
        scores: logits on the scale of the temperature ``[rows, vocab]``, before truncation.
    """
    noisy = scores + noise
    loose, tight = truncation_floors(scores, slack, top_k=top_k, top_p=top_p, min_p=min_p)
    if loose is None or tight is None:
        return contested(noisy, choices, slack)
    own = mx.take_along_axis(scores, choices.astype(mx.uint32)[:, None], axis=-1)[:, 0]
    # The best token is always kept, and it surely is the best when no other comes near.
    dropped = (own < tight[:, 0]) & contested(scores, choices, slack)
    return dropped | contested(mx.where(scores >= loose, noisy, -mx.inf), choices, slack)


def truncation_floors(
    scores: mx.array, slack: float, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[mx.array | None, mx.array | None]:
    """Scores ``[rows, 1]`` below which truncation drops a token for certain, and from which on it keeps it for certain.

    For scores of which any two differ by up to ``slack`` less or more than they should; None when nothing truncates.
    Sums of probabilities are then wrong by a factor of up to ``e^slack``.
    """
    vocab = scores.shape[-1]
    lows: list[mx.array] = []
    highs: list[mx.array] = []
    most = least = scores
    best = mx.max(scores, axis=-1, keepdims=True)
    if 0 < top_k < vocab:
        top = -mx.sort(-mx.take_along_axis(scores, best_tokens(scores, top_k + 1), axis=-1), axis=-1)
        lows.append(top[:, top_k - 1 : top_k] - slack)
        highs.append(top[:, top_k:] + slack)
        most = mx.where(scores >= lows[0], scores, -mx.inf)
        least = mx.where(scores >= highs[0], scores, -mx.inf)
    if top_p < 1.0:
        wide = top_p * math.exp(min(slack, 700.0))
        lows.append(_nucleus(most, best, wide) - slack if wide < 1.0 else mx.full(best.shape, -mx.inf))
        highs.append(_nucleus(least, best, top_p * math.exp(-slack)) + slack)
    if min_p > 0.0:
        floor = best + math.log(min_p)
        lows.append(floor - slack)
        highs.append(floor + slack)
    if not lows:
        return None, None
    return functools.reduce(mx.maximum, lows), functools.reduce(mx.maximum, highs)


def _nucleus(scores: mx.array, best: mx.array, top_p: float) -> mx.array:
    """The smallest score ``[rows, 1]`` of the best tokens whose probabilities reach ``top_p``; infinite without any."""
    wanted = top_p * mx.sum(mx.exp(scores - best), axis=-1, keepdims=True)
    if scores.shape[-1] > 2 * HEAD:
        head = mx.take_along_axis(scores, best_tokens(scores, HEAD), axis=-1)
        floor = _floor(head, best, wanted)
        if mx.all(floor > mx.min(head, axis=-1, keepdims=True)).item():
            return floor
    return _floor(scores, best, wanted)


def _floor(scores: mx.array, best: mx.array, wanted: mx.array) -> mx.array:
    descending = -mx.sort(-scores, axis=-1)
    before = mx.cumsum(mx.exp(descending - best), axis=-1, inclusive=False)
    return mx.min(mx.where(before < wanted, descending, mx.inf), axis=-1, keepdims=True)
