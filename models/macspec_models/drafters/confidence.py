"""Choosing draft tokens and saying how sure the drafter is, in float32, as one lazy graph."""

from __future__ import annotations

import mlx.core as mx


def choose(scores: mx.array, noise: mx.array | None = None) -> mx.array:
    """Arg max per row of ``scores [k, vocab]`` (plus keyed ``noise`` of the same shape): int32 ``[k]``."""
    return mx.argmax(scores if noise is None else scores + noise, axis=-1).astype(mx.int32)


def confidence(scores: mx.array, tokens: mx.array, noise: mx.array | None = None) -> mx.array:
    """Probability, top-1/top-2 gap and entropy of each row: float32 ``[k, 3]``.

    Args:
        scores: float32 logits ``[k, vocab]`` on the target's scale. ``-inf`` marks tokens never proposed.
        tokens: the chosen tokens ``[k]``.
        noise: what was added to choose them; the gap is then that of the noisy scores, since their order decides.
    """
    peak = mx.max(scores, axis=-1, keepdims=True)
    weights = mx.exp(scores - peak)
    total = weights.sum(axis=-1)
    # sum(w * s) with w = 0 where s = -inf would be NaN.
    mean = (weights * mx.maximum(scores - peak, -1e30)).sum(axis=-1) / total
    entropy = mx.log(total) - mean
    column = tokens[:, None]
    chosen = mx.take_along_axis(scores, column, axis=-1)
    probability = mx.exp(chosen - peak)[:, 0] / total
    decided = scores if noise is None else scores + noise
    best = chosen if noise is None else mx.take_along_axis(decided, column, axis=-1)
    others = mx.where(mx.arange(scores.shape[-1]) == column, -mx.inf, decided)
    gap = best[:, 0] - mx.max(others, axis=-1)
    return mx.stack([probability, gap, entropy], axis=-1)
