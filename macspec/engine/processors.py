"""Truncation of a distribution: which tokens are left to draw from.

All functions take float32 logits ``[rows, n]`` on the scale of the temperature, are lazy, and treat rows independently,
so a row's result does not depend on how many rows a pass has.
"""

from __future__ import annotations

import math

import mlx.core as mx

#: On a CPU top-p and min-p first look among this many best tokens: sorting a whole vocabulary takes ten times as long.
HEAD = 4096


def truncated(
    logits: mx.array, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[mx.array, mx.array | None]:
    """Apply top-k, then top-p and min-p to what it leaves. Values that change nothing are off.

    Top-p keeps the smallest set of best tokens whose probabilities reach ``top_p`` (Holtzman et al., ICLR 2020), min-p
    those at least ``min_p`` times as likely as the likeliest (Nguyen et al. 2407.01082). Tokens tied with the last one
    kept are kept too, except by top-k, which keeps exactly ``top_k``.

    Returns:
        Logits ``[rows, m]``, minus infinity where a token was dropped, and the token ids uint32 ``[rows, m]`` they
        belong to; None for ids in order.
    """
    vocab = logits.shape[-1]
    if 0 < top_k < vocab:
        tokens = best_tokens(logits, top_k)
        logits = mx.take_along_axis(logits, tokens, axis=-1)
        return _keep(logits, _floor(logits, _mass(logits, top_p), top_p, min_p)), tokens
    mass = _mass(logits, top_p)
    if (top_p < 1.0 or min_p > 0.0) and vocab > 2 * HEAD and mx.default_device() == mx.cpu:
        tokens = best_tokens(logits, HEAD)
        head = mx.take_along_axis(logits, tokens, axis=-1)
        floor = _floor(head, mass, top_p, min_p)
        # The head decides if it has a token that is dropped. Waiting for this flag costs a CPU nothing: nothing else
        # could run meanwhile.
        if floor is not None and mx.all(mx.min(head, axis=-1, keepdims=True) < floor).item():
            return _keep(head, floor), tokens
    return _keep(logits, _floor(logits, mass, top_p, min_p)), None


def best_tokens(logits: mx.array, k: int) -> mx.array:
    """Token ids of the ``k`` best logits, unordered: uint32 ``[rows, k]``."""
    return mx.argpartition(-logits, k - 1, axis=-1)[:, :k]


def _mass(logits: mx.array, top_p: float) -> mx.array | None:
    """Sum of ``exp(logit - best)`` of each row ``[rows, 1]``; None when top-p is off."""
    if top_p >= 1.0:
        return None
    return mx.sum(mx.exp(logits - mx.max(logits, axis=-1, keepdims=True)), axis=-1, keepdims=True)


def _floor(logits: mx.array, mass: mx.array | None, top_p: float, min_p: float) -> mx.array | None:
    """The smallest logit kept ``[rows, 1]``, from logits that include the best ones; None keeps all."""
    floor = None
    best = mx.max(logits, axis=-1, keepdims=True)
    if mass is not None:
        descending = -mx.sort(-logits, axis=-1)
        before = mx.cumsum(mx.exp(descending - best), axis=-1, inclusive=False)
        floor = mx.min(mx.where(before < top_p * mass, descending, mx.inf), axis=-1, keepdims=True)
    if min_p > 0.0:
        least = best + math.log(min_p)
        floor = least if floor is None else mx.maximum(floor, least)
    return floor


def _keep(logits: mx.array, floor: mx.array | None) -> mx.array:
    return logits if floor is None else mx.where(logits >= floor, logits, -mx.inf)
