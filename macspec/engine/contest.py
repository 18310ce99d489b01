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
    own = mx.take_along_axis(scores, choices.astype(mx.uint32)[:, None], axis=-1)
    floor, kept = _truncation(scores, own, slack, top_k=top_k, top_p=top_p, min_p=min_p)
    noisy = scores + noise
    if floor is not None:
        noisy = mx.where(scores >= floor, noisy, -mx.inf)
    found = contested(noisy, choices, slack)
    return found if kept is None else found | ~kept


def _truncation(
    scores: mx.array, own: mx.array, slack: float, *, top_k: int, top_p: float, min_p: float
) -> tuple[mx.array | None, mx.array | None]:
    """The score ``[rows, 1]`` below which truncation surely drops a token; whether it surely keeps ``own [rows, 1]``.

    For scores of which any two differ by up to ``slack`` less or more than they should: shares of a sum of
    probabilities are then wrong by a factor of up to ``e^slack``, also where the sum is of the k best. None: no such
    limit.
    """
    floors: list[mx.array] = []
    kept: list[mx.array] = []
    best = mx.max(scores, axis=-1, keepdims=True)
    weights = mx.exp(scores - best)
    total = mx.sum(weights, axis=-1, keepdims=True)
    rivals = scores > own - slack
    if 0 < top_k < scores.shape[-1]:
        top = mx.take_along_axis(scores, best_tokens(scores, top_k), axis=-1)
        total = mx.sum(mx.exp(top - best), axis=-1, keepdims=True)
        floors.append(mx.min(top, axis=-1, keepdims=True) - slack)
        # The chosen token is among its own rivals.
        kept.append(mx.sum(rivals, axis=-1) <= top_k)
    if top_p < 1.0:
        grown = math.exp(min(slack, 80.0))
        if top_p * grown < 1.0:
            floors.append(_nucleus(scores, best, top_p * grown * total) - slack)
        ahead = mx.sum(mx.where(rivals, weights, 0.0), axis=-1, keepdims=True) - mx.exp(own - best)
        kept.append((ahead * grown < top_p * total)[:, 0])
    if min_p > 0.0:
        least = best + math.log(min_p)
        floors.append(least - slack)
        kept.append((own >= least + slack)[:, 0])
    if not kept:
        return None, None
    return functools.reduce(mx.maximum, floors) if floors else None, functools.reduce(mx.logical_and, kept)


def _nucleus(scores: mx.array, best: mx.array, wanted: mx.array) -> mx.array:
    """The smallest score ``[rows, 1]`` among the best tokens that reach ``wanted``, a sum of ``exp(score - best)``."""
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
