"""One class per kind of mlx-lm cache: how rows are taken back, copied, shortened, checked.

A *leaf* wraps one cache that holds arrays. `CacheList` only groups leaves. Positional leaves hold one entry per
position and go back by forgetting the newest; a recurrent leaf holds one state for all positions and can only go back
to a state that was kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from macspec.engine.caches.window import WindowCache
from macspec.errors import UnsupportedError

#: Rows a bounded buffer may hold beyond its window: those of a prefill pass, or the spare ones.
PASS_ROWS = 512


class CacheStateError(RuntimeError):
    """A cache does not hold what it should: a defect, or a device failure in the middle of a pass."""


def handle(array: Any) -> Any:
    """A second handle on the same data: item assignment through one leaves the other alone, nothing is copied yet."""
    return copy.copy(array)


def compact(array: mx.array) -> mx.array:
    """A view's rows in a buffer of their own, so that the view does not keep a larger buffer alive."""
    return mx.contiguous(array)


class Leaf:
    """Operations every kind offers. ``cache`` is the mlx-lm object the model updates."""

    #: A recurrent leaf needs the accepted rows run again after a partial rollback.
    recurrent = False
    #: A bounded leaf forgets old positions, so that it cannot go back to every length.
    bounded = False

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def length(self) -> int | None:
        """Positions taken in so far, or None when the kind does not count them."""
        return int(self.cache.offset)

    def mark(self) -> Any:
        """What `rewind` needs to come back to this moment; costs no device work."""
        return None

    def rewind(self, length: int, mark: Any) -> None:
        """Forget positions from ``length`` on. A recurrent leaf goes back to ``mark`` whatever ``length`` is."""
        raise NotImplementedError

    def resumable(self, rows: int) -> bool:
        """Whether `keep` can keep some of the ``rows`` rows of the pass just made, so that none has to run again."""
        return True

    def keep(self, start: int, accepted: int, mark: Any) -> None:
        """Keep the first ``accepted`` rows of a pass that began at ``start``, when ``mark`` was made."""
        self.rewind(start + accepted, mark)

    def close(self) -> None:
        """The transaction is over."""

    def clear(self) -> None:
        """Forget everything: the leaf as it was made."""
        raise NotImplementedError

    def lowest(self) -> int:
        """The smallest length `rewind` can reach without a snapshot."""
        return 0

    def shrink(self) -> None:
        """Release buffer rows that hold nothing, when they are the larger part."""

    def snapshot(self) -> Any:
        """A lasting copy of what later rows will overwrite; None when rows stay as they are."""
        return None

    def restore(self, snapshot: Any, length: int) -> None:
        """Come back to the moment of `snapshot`, taken at ``length``."""
        self.rewind(length, None)

    def export(self) -> list[Any]:
        """Everything `fill` needs to rebuild this leaf: arrays without spare rows, integers and None."""
        return list(self.snapshot())

    def fill(self, parts: list[Any], length: int) -> None:
        """Make this empty leaf what `export` saw at ``length`` positions."""
        self.restore(parts, length)

    def fork(self) -> Leaf:
        """An independent leaf that shares the arrays until one side writes."""
        raise NotImplementedError

    def arrays(self) -> list[mx.array]:
        """Every array held."""
        raise NotImplementedError

    def row_cost(self) -> tuple[int, int | None, int]:
        """Buffer rows (0 when they are not counted), the most rows ever kept (None: every position), bytes of both."""
        arrays = self.arrays()
        return arrays[0].shape[2] if arrays else 0, None, sum(array.nbytes for array in arrays)

    def problem(self, length: int) -> str | None:
        """What is wrong if the cache does not hold exactly ``length`` positions of one sequence, else None."""
        raise NotImplementedError


class KeyValueLeaf(Leaf):
    """`KVCache` and `QuantizedKVCache`: preallocated rows, the newest beyond ``offset`` are scratch."""

    def rewind(self, length: int, mark: Any) -> None:
        self.cache.offset = length

    def clear(self) -> None:
        self.cache.keys = self.cache.values = None
        self.cache.offset = 0

    def _map(self, change: Any) -> None:
        for name in ("keys", "values"):
            held = getattr(self.cache, name)
            if held is not None:
                many = isinstance(held, (tuple, list))
                setattr(self.cache, name, type(held)(change(a) for a in held) if many else change(held))

    def shrink(self) -> None:
        arrays, step = self.arrays(), self.cache.step
        rows = -(-self.cache.offset // step) * step
        if arrays and rows == 0:
            self.cache.keys = self.cache.values = None
        elif arrays and 2 * rows <= arrays[0].shape[2]:
            self._map(lambda array: compact(array[..., :rows, :]))

    def export(self) -> list[Any]:
        return [compact(array[..., : self.cache.offset, :]) for array in self.arrays()]

    def fill(self, parts: list[Any], length: int) -> None:
        if parts:
            half = len(parts) // 2
            keys, values = (parts[0], parts[1]) if half == 1 else (tuple(parts[:half]), tuple(parts[half:]))
            self.cache.keys, self.cache.values = keys, values
        self.cache.offset = length

    def fork(self) -> KeyValueLeaf:
        other = type(self)(copy.copy(self.cache))
        other._map(handle)
        return other

    def arrays(self) -> list[mx.array]:
        found: list[mx.array] = []
        for held in (self.cache.keys, self.cache.values):
            found.extend(held if isinstance(held, (tuple, list)) else [] if held is None else [held])
        return found

    def problem(self, length: int) -> str | None:
        if self.cache.offset != length:
            return f"counts {self.cache.offset} positions"
        return _array_problem(self.arrays(), length)


class WindowLeaf(Leaf):
    """`WindowCache`, which every `RotatingKVCache` becomes."""

    bounded = True
    cache: WindowCache

    def rewind(self, length: int, mark: Any) -> None:
        if not self.lowest() <= length <= self.cache.offset:
            raise CacheStateError(f"a window cache cannot go back from {self.cache.offset} to {length} positions")
        self.cache.rewind(length)

    def clear(self) -> None:
        self.restore((None, None, 0), 0)

    def lowest(self) -> int:
        return self.cache.lowest()

    def snapshot(self) -> Any:
        cache = self.cache
        rows = min(cache._idx, max(cache.max_size - 1, 0))
        if cache.keys is None:
            return (None, None, 0)
        first, last = cache._idx - rows, cache._idx
        return compact(cache.keys[..., first:last, :]), compact(cache.values[..., first:last, :]), rows

    def restore(self, snapshot: Any, length: int) -> None:
        keys, values, rows = snapshot
        cache = self.cache
        cache.keys, cache.values = (None, None) if keys is None else (handle(keys), handle(values))
        cache.offset, cache._idx, cache._shown = length, rows, rows

    def fork(self) -> WindowLeaf:
        other = copy.copy(self.cache)
        if other.keys is not None:
            other.keys, other.values = handle(other.keys), handle(other.values)
        return WindowLeaf(other)

    def arrays(self) -> list[mx.array]:
        return [] if self.cache.keys is None else [self.cache.keys, self.cache.values]

    def row_cost(self) -> tuple[int, int | None, int]:
        rows, _, nbytes = super().row_cost()
        return rows, self.cache.max_size + PASS_ROWS, nbytes

    def problem(self, length: int) -> str | None:
        cache = self.cache
        if cache.offset != length:
            return f"counts {cache.offset} positions"
        if cache._idx < min(length, cache.max_size - 1):
            return f"holds {cache._idx} rows of a window of {cache.max_size}"
        if cache._idx > length:
            return f"holds {cache._idx} rows of {length} positions"
        return _array_problem(self.arrays(), cache._idx)


class ChunkedLeaf(KeyValueLeaf):
    """`ChunkedKVCache`: like `KVCache`, but the model drops rows from the front."""

    bounded = True

    def rewind(self, length: int, mark: Any) -> None:
        if length < self.cache.start_position:
            raise CacheStateError(f"a chunked cache has dropped position {length}")
        self.cache.offset = length

    def clear(self) -> None:
        self.restore((None, None, 0), 0)

    def lowest(self) -> int:
        # The model drops from the front only what lies more than a chunk behind the newest row it keeps.
        start = int(self.cache.start_position)
        return 0 if start == 0 else start + int(self.cache.chunk_size)

    def shrink(self) -> None:
        """Nothing: the buffer is at most a chunk and a pass."""

    def row_cost(self) -> tuple[int, int | None, int]:
        rows, _, nbytes = super().row_cost()
        return rows, self.cache.chunk_size + PASS_ROWS, nbytes

    def snapshot(self) -> Any:
        cache = self.cache
        if cache.keys is None:
            return (None, None, 0)
        rows = cache.offset - cache.start_position
        return compact(cache.keys[..., :rows, :]), compact(cache.values[..., :rows, :]), cache.start_position

    def export(self) -> list[Any]:
        return list(self.snapshot())

    def fill(self, parts: list[Any], length: int) -> None:
        self.restore(parts, length)

    def restore(self, snapshot: Any, length: int) -> None:
        keys, values, start = snapshot
        cache = self.cache
        cache.keys, cache.values = (None, None) if keys is None else (handle(keys), handle(values))
        cache.offset, cache.start_position = length, start

    def problem(self, length: int) -> str | None:
        if self.cache.offset != length:
            return f"counts {self.cache.offset} positions"
        rows = length - self.cache.start_position
        if rows < 0:
            return f"starts at position {self.cache.start_position}"
        return _array_problem(self.arrays(), rows)


class ConcatenateLeaf(KeyValueLeaf):
    """`ConcatenateKVCache`: no spare rows, so forgetting means a shorter array."""

    def rewind(self, length: int, mark: Any) -> None:
        cache = self.cache
        if length == 0:
            cache.keys = cache.values = None
        elif length < cache.keys.shape[2]:
            cache.keys, cache.values = cache.keys[..., :length, :], cache.values[..., :length, :]
        cache.offset = length

    def shrink(self) -> None:
        self._map(compact)


class RecurrentLeaf(Leaf):
    """`ArraysCache`: linear attention, state-space and short-convolution layers keep one state for all positions.

    A layer may leave a record of its pass in the cache (``cache.record``, see `macspec.kernels.replay`): with it the
    leaf can keep the first rows of the pass. A record is good until the transaction ends.
    """

    recurrent = True

    def resumable(self, rows: int) -> bool:
        record = getattr(self.cache, "record", None)
        return record is not None and record.rows == rows

    def keep(self, start: int, accepted: int, mark: Any) -> None:
        if accepted:
            self.cache.cache = self.cache.record.after(accepted)
        else:
            self.rewind(start, mark)

    def close(self) -> None:
        self.cache.record = None

    def clear(self) -> None:
        self.cache.cache = [None] * len(self.cache.cache)

    def length(self) -> int | None:
        return None

    def mark(self) -> Any:
        return [None if array is None else handle(array) for array in self.cache.cache]

    def rewind(self, length: int, mark: Any) -> None:
        self.cache.cache = [None if array is None else handle(array) for array in mark]

    def snapshot(self) -> Any:
        return [None if array is None else compact(array) for array in self.cache.cache]

    def restore(self, snapshot: Any, length: int) -> None:
        self.rewind(length, snapshot)

    def shrink(self) -> None:
        self.cache.cache = self.snapshot()

    def row_cost(self) -> tuple[int, int | None, int]:
        return 0, None, sum(array.nbytes for array in self.arrays())

    def fork(self) -> RecurrentLeaf:
        other = copy.copy(self.cache)
        other.cache = self.mark()
        return RecurrentLeaf(other)

    def arrays(self) -> list[mx.array]:
        return [array for array in self.cache.cache if array is not None]

    def problem(self, length: int) -> str | None:
        if self.cache.left_padding is not None or self.cache.lengths is not None:
            return "is set up for a padded batch"
        if length == 0 and self.arrays():
            return "holds a state before the first position"
        if any(array.shape[0] != 1 for array in self.arrays()):
            return "holds more than one sequence"
        return None


#: Exact types only: a subclass may keep state these operations do not know.
KINDS: dict[type, type[Leaf]] = {
    KVCache: KeyValueLeaf,
    QuantizedKVCache: KeyValueLeaf,
    WindowCache: WindowLeaf,
    ChunkedKVCache: ChunkedLeaf,
    ConcatenateKVCache: ConcatenateLeaf,
    ArraysCache: RecurrentLeaf,
}


def refusal(cache: Any) -> str | None:
    """Why rows of this cache cannot be taken back, naming its kind; None when they can."""
    kind = type(cache)
    if kind is CacheList:
        return next((reason for part in cache.caches if (reason := refusal(part))), None)
    if kind is RotatingKVCache:
        return None if cache.keep == 0 else f"RotatingKVCache that pins its first {cache.keep} rows"
    return None if kind in KINDS else kind.__name__


def adopt(cache: Any) -> Any:
    """The cache to hand to the model in place of ``cache``: ring buffers become windows, all else stays."""
    if type(cache) is CacheList:
        cache.caches = tuple(adopt(part) for part in cache.caches)
        return cache
    return WindowCache.from_rotating(cache) if type(cache) is RotatingKVCache else cache


def leaves(cache: Any) -> Iterator[Leaf]:
    """The leaves of one layer's cache, in order."""
    if type(cache) is CacheList:
        for part in cache.caches:
            yield from leaves(part)
    else:
        yield KINDS[type(cache)](cache)


def rebuild(cache: Any, parts: Iterator[Leaf]) -> Any:
    """The layer cache of ``cache``'s shape around other leaves, taken from ``parts`` in order."""
    if type(cache) is CacheList:
        return CacheList(*(rebuild(part, parts) for part in cache.caches))
    return next(parts).cache


def quantize_layers(layers: list[Any], bits: int, group_size: int = 64) -> list[Any]:
    """Replace empty full-attention caches by quantised ones (``bits`` 4 or 8); other kinds stay as they are.

    Raises:
        UnsupportedError: the width is unknown, or no layer has a cache that can be quantised.
    """
    if bits not in (4, 8):
        raise UnsupportedError(f"The KV cache can be kept in 4 or 8 bits, not {bits}.", param="kv_bits")
    changed = [cache.to_quantized(group_size, bits) if type(cache) is KVCache else cache for cache in layers]
    if all(new is old for new, old in zip(changed, layers, strict=True)):
        names = ", ".join(sorted({type(cache).__name__ for cache in layers}))
        raise UnsupportedError(
            f"This model's caches ({names}) cannot be quantised; leave out the number of KV bits.", param="kv_bits"
        )
    return changed


def _array_problem(arrays: list[mx.array], rows: int) -> str | None:
    if rows and not arrays:
        return f"holds no arrays for {rows} rows"
    for array in arrays:
        if array.shape[0] != 1:
            return "holds more than one sequence"
        if array.shape[2] < rows:
            return f"has a buffer of {array.shape[2]} rows for {rows}"
    return None
