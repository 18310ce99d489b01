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


#: Caches and the features of what they hold, ``[rows, taps * width]`` or None where nothing is tapped.
Filled = tuple[TargetCache, mx.array | None]


def filled(target: Target, length: int, seed: Filled | None = None) -> Filled:
    """Caches of ``length`` positions and the features of a stretch of them, at most `SEED_ROWS`.

    Plain key-value caches repeat a short prefill; others (windows, recurrent states) are prefilled for real.

    Args:
        seed: an earlier result of ``filled(target, SEED_ROWS)`` to repeat; it stays as it is.
    """
    if seed is None or length < SEED_ROWS:
        cache = TargetCache(target.make_cache())
        seed = cache, _append(target, cache, min(SEED_ROWS, length))
    cache, features = seed
    if length <= cache.length:
        return cache.fork(), features
    repeated = _repeat(target, cache, length)
    if repeated is not None:
        return repeated, features
    cache = cache.fork()
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
