"""A model of integers: every answer is exact, so that caches can be compared bit by bit whatever the BLAS.

Each layer has one kind of cache. Row ``t`` of a layer's output is a checksum of everything the row may see: for
attention-like layers the tokens in its window weighted by their positions, for recurrent ones a state that mixes every
token so far in order. One wrong, missing, extra or misplaced row changes the checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import macspec_models  # noqa: F401  (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

WINDOW = 6
CHUNK = 5
DIM = 32

KINDS: dict[str, Callable[[], Any]] = {
    "full": KVCache,
    "quantized": lambda: QuantizedKVCache(group_size=32, bits=8),
    "window": lambda: RotatingKVCache(max_size=WINDOW),
    "chunked": lambda: ChunkedKVCache(CHUNK),
    "concatenated": ConcatenateKVCache,
    "recurrent": lambda: ArraysCache(2),
    "list": lambda: CacheList(ArraysCache(2), KVCache()),
    "windowed list": lambda: CacheList(KVCache(), RotatingKVCache(max_size=WINDOW)),
}


class ToyModel:
    """``forward(tokens [1, n], layers)`` gives checksums ``[n, leaves]``, exact in float32 for up to 1000 positions."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        #: Layer before which the next pass raises, for fault injection.
        self.fail_at: int | None = None

    def make_cache(self) -> list[Any]:
        return [KINDS[kind]() for kind in self.kinds]

    def forward(self, tokens: mx.array, layers: list[Any]) -> mx.array:
        columns = []
        for number, cache in enumerate(layers):
            if self.fail_at == number:
                raise InjectedError(f"layer {number}")
            columns.append(_layer(tokens, cache))
        if self.fail_at == len(layers):
            raise InjectedError("after the last layer")
        return mx.concatenate(columns, axis=1)


class InjectedError(Exception):
    """What a toy model raises when told to fail."""


def _layer(tokens: mx.array, cache: Any) -> mx.array:
    if isinstance(cache, CacheList):
        return mx.concatenate([_layer(tokens, part) for part in cache.caches], axis=1)
    return (_recurrent(tokens, cache) if isinstance(cache, ArraysCache) else _attention(tokens, cache))[:, None]


def _attention(tokens: mx.array, cache: Any) -> mx.array:
    rows = tokens.shape[1]
    if isinstance(cache, ChunkedKVCache):
        cache.maybe_trim_front()
        start, offset = cache.start_position, cache.offset
        keys_at, queries_at = mx.arange(start, offset + rows), mx.arange(offset, offset + rows)[:, None]
        mask: Any = (keys_at[None] <= queries_at) & (keys_at[None] // CHUNK == queries_at // CHUNK)
    elif isinstance(cache, RotatingKVCache):
        mask = create_attention_mask(mx.zeros((1, rows, 1)), cache, window_size=WINDOW)
    else:
        mask = create_attention_mask(mx.zeros((1, rows, 1)), cache)
    positions = mx.arange(cache.offset, cache.offset + rows)
    row = tokens[0].astype(mx.float32) * (1 + positions % 13).astype(mx.float32)
    keys, values = cache.update_and_fetch(
        *(mx.broadcast_to(x[None, None, :, None], (1, 1, rows, DIM)) for x in (row, row + 1))
    )
    seen = _numbers(keys, cache) * 3 + _numbers(values, cache)
    count = seen.shape[0]
    if mask is None:
        visible = mx.ones((rows, count), dtype=mx.bool_)
    elif isinstance(mask, str):
        visible = mx.arange(count)[None] <= mx.arange(count - rows, count)[:, None]
    else:
        visible = mask
    return mx.where(visible, seen[None], 0).sum(axis=1)


def _numbers(stored: Any, cache: Any) -> mx.array:
    if isinstance(cache, QuantizedKVCache):
        return mx.round(mx.dequantize(*stored, group_size=cache.group_size, bits=cache.bits)[0, 0, :, 0])
    return stored[0, 0, :, 0]


def _recurrent(tokens: mx.array, cache: Any) -> mx.array:
    # Plain integers: an unrolled graph of one node per token and operation would take most of the tests' time.
    state = 7 if cache[0] is None else cache[0].item()
    older, newer = (0, 0) if cache[1] is None else cache[1][0].tolist()
    found = []
    for token in tokens[0].tolist():
        state = (state * 31 + token * (1 + older) + newer) % 1021
        older, newer = newer, token
        found.append(state)
    cache[0], cache[1] = mx.array([state]), mx.array([[older, newer]])
    return mx.array(found, dtype=mx.float32)
