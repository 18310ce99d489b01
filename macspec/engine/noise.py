"""Noise that is a pure function of seed, absolute position and token, so that every path makes the same choice."""

from __future__ import annotations

import mlx.core as mx

#: Multiplier and increment of the linear congruential step of pcg4d.
_MULTIPLIER, _INCREMENT = 1664525, 1013904223
#: The largest float32 below one.
_BELOW_ONE = 1.0 - 2.0**-24
_SEED_STEP = 0x9E3779B97F4A7C15
_MASK64 = 2**64 - 1


def keyed_gumbel(seed: int, position: int, rows: int, vocab: int) -> mx.array:
    """Gumbel(0, 1) noise of ``rows`` consecutive positions.

    Args:
        seed: any integer; taken modulo 2^64.
        position: absolute position of the token that row 0 chooses; row r is ``position + r``.

    Returns:
        Lazy float32 ``[rows, vocab]``. ``arg max(logits / T + noise)`` is a draw from ``softmax(logits / T)``.
    """
    return gumbel_at(seed, position, rows, mx.arange(vocab, dtype=mx.uint32)[None])


def gumbel_at(seed: int, position: int, rows: int, tokens: mx.array) -> mx.array:
    """The columns ``tokens`` (uint32 ``[rows or 1, n]``) of `keyed_gumbel`: float32 ``[rows, n]``."""
    positions = mx.arange(position, position + rows, dtype=mx.uint32)[:, None]
    low = mx.array(seed & 0xFFFFFFFF, dtype=mx.uint32)
    high = mx.array((seed >> 32) & 0xFFFFFFFF, dtype=mx.uint32)
    return _gumbel(_pcg4d(tokens, positions, low, high))


def derived_seed(seed: int, index: int) -> int:
    """Seed of answer ``index`` of a request with ``n`` > 1; the first answer keeps ``seed`` itself."""
    return (seed + index * _SEED_STEP) & _MASK64


def _pcg4d(x: mx.array, y: mx.array, z: mx.array, w: mx.array) -> mx.array:
    """32 random bits per broadcast element: last word of pcg4d (Jarzynski & Olano, JCGT 9(3), 2020)."""
    x, y, z, w = (word * _MULTIPLIER + _INCREMENT for word in (x, y, z, w))
    x = x + y * w
    y = y + z * x
    z = z + x * y
    w = w + y * z
    x, y, z, w = (word ^ (word >> 16) for word in (x, y, z, w))
    x = x + y * w
    y = y + z * x
    z = z + x * y
    return w + y * z


def _gumbel(bits: mx.array) -> mx.array:
    """Inverse transform through the exponential law, whose small values (the winners) keep full precision."""
    uniform = mx.minimum((bits.astype(mx.float32) + 0.5) * 2.0**-32, _BELOW_ONE)
    return -mx.log(-mx.log1p(-uniform))
