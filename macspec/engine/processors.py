"""Truncation of a distribution: the parts of ``logits -> choice`` that keep only likely tokens.

All functions take float32 logits ``[rows, n]`` on the scale of the temperature, are lazy, and treat rows independently,
so a row's result does not depend on how many rows a pass has. Tokens tied with the last one kept are kept too.
"""

from __future__ import annotations

import math

import mlx.core as mx

#: On the CPU the nucleus is first looked for among this many best tokens; sorting them all is ten times slower.
_CPU_HEAD = 2048


def top_k_candidates(logits: mx.array, k: int) -> mx.array:
    """Token ids of the ``k`` best logits, unordered: uint32 ``[rows, k]``."""
    return mx.argpartition(-logits, k - 1, axis=-1)[:, :k]


def keep_top_p(logits: mx.array, top_p: float) -> mx.array:
    """Keep the smallest set of best tokens whose probabilities reach ``top_p`` (Holtzman et al., ICLR 2020)."""
    peak = mx.max(logits, axis=-1, keepdims=True)
    needed = top_p * mx.sum(mx.exp(logits - peak), axis=-1, keepdims=True)
    vocab = logits.shape[-1]
    if vocab > 2 * _CPU_HEAD and mx.default_device() == mx.cpu:
        head = -mx.sort(-mx.topk(logits, _CPU_HEAD, axis=-1), axis=-1)
        # Waiting for this one flag costs nothing on a CPU, where nothing else could run meanwhile.
        before = _mass_before(head, peak)
        if mx.all(before[:, -1:] >= needed).item():
            return keep_from(logits, _floor(head, before < needed))
    descending = -mx.sort(-logits, axis=-1)
    return keep_from(logits, _floor(descending, _mass_before(descending, peak) < needed))


def keep_min_p(logits: mx.array, min_p: float) -> mx.array:
    """Drop tokens less likely than ``min_p`` times the likeliest one (Nguyen et al. 2407.01082)."""
    return keep_from(logits, mx.max(logits, axis=-1, keepdims=True) + math.log(min_p))


def keep_from(logits: mx.array, floor: mx.array) -> mx.array:
    """Minus infinity wherever ``logits`` are below ``floor [rows, 1]``."""
    return mx.where(logits >= floor, logits, -mx.inf)


def _mass_before(descending: mx.array, peak: mx.array) -> mx.array:
    return mx.cumsum(mx.exp(descending - peak), axis=-1, inclusive=False)


def _floor(descending: mx.array, kept: mx.array) -> mx.array:
    return mx.min(mx.where(kept, descending, mx.inf), axis=-1, keepdims=True)
