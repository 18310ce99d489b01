"""Caches of a wanted length without a long prefill: what a pass costs depends on how much is cached, not on what."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from macspec.engine.caches import CacheStateError, TargetCache
from macspec_models.drafters.interface import DraftContext, Drafter
from macspec_models.target import Target

#: Rows of the real prefill that longer caches repeat.
SEED_ROWS = 32
#: Rows of one chunk where caches cannot be repeated and the whole length is prefilled.
CHUNK = 512


def filled(target: Target, length: int) -> tuple[TargetCache, mx.array | None]:
    """Caches of ``length`` positions and the features ``[SEED_ROWS, taps * width]`` of a stretch of them.

    Plain key-value caches repeat a short prefill; others (windows, recurrent states) are prefilled for real.
    """
    cache = TargetCache(target.make_cache())
    features = _append(target, cache, min(SEED_ROWS, length))
    if length <= SEED_ROWS:
        return cache, features
    repeated = _repeat(target, cache, length)
    if repeated is not None:
        return repeated, features
    while cache.length < length:
        _append(target, cache, min(CHUNK, length - cache.length))
    return cache, features


def filled_context(drafter: Drafter, features: mx.array, length: int) -> DraftContext:
    """A drafter's context of ``length`` positions, made of repeated ``features``."""
    context = drafter.new_context()
    while context.length < length:
        rows = min(CHUNK, length - context.length)
        copies = -(-rows // features.shape[0])
        drafter.extend(context, mx.tile(features, (copies, 1))[:rows])
        mx.eval(context.arrays())
    return context


def _append(target: Target, cache: TargetCache, rows: int) -> mx.array | None:
    tokens = [(17 * i + 11) % target.vocab_size for i in range(rows)]
    with cache.append():
        logits = target.forward(mx.array([tokens]), cache.layers)
    features = target.features()
    mx.eval(logits, cache.arrays(), [] if features is None else features)
    return features


def _repeat(target: Target, seed: TargetCache, length: int) -> TargetCache | None:
    """Caches whose arrays repeat those of ``seed``, or None when a layer is no plain key-value cache."""
    if seed.needs_marks:
        return None
    parts = [[_stretched(part, seed.length, length) for part in leaf] for leaf in seed.export()]
    if any(part is None for leaf in parts for part in leaf):
        return None
    longer = TargetCache(target.make_cache())
    try:
        longer.fill(parts, length)
        longer.check()
    except (CacheStateError, ValueError, TypeError):
        return None
    mx.eval(longer.arrays())
    return longer


def _stretched(part: Any, rows: int, length: int) -> mx.array | None:
    if not isinstance(part, mx.array) or part.ndim != 4 or part.shape[2] != rows:
        return None
    return mx.tile(part, (1, 1, -(-length // rows), 1))[:, :, :length, :]
