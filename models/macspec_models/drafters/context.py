"""What a block drafter keeps of the committed tokens: keys and values per layer, in preallocated chunks.

Positions are absolute. A full-attention layer keeps all of them; a sliding layer forgets, now and then, those no later
block will see. Rows behind ``length`` are scratch: a draft writes its block's keys and values there, so that attention
reads one contiguous buffer and no context is copied per round.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

#: Rows a buffer grows by.
CHUNK = 256


class LayerBuffer:
    """Keys and values of one layer, ``[1, kv_heads, capacity, head_dim]``; row 0 is absolute position ``base``."""

    def __init__(self, window: int | None, chunk: int = CHUNK) -> None:
        self.window, self.chunk = window, chunk
        # A little more than the window, so that trimming up to a chunk costs a sliding layer nothing.
        self._kept = None if window is None else window + chunk
        self.base, self.length = 0, 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def rows(self) -> int:
        """Committed rows held."""
        return self.length - self.base

    @property
    def pair(self) -> tuple[mx.array | None, mx.array | None]:
        """The two buffers, scratch rows included."""
        return self.keys, self.values

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Commit ``[1, kv_heads, n, head_dim]`` at positions ``length ...``."""
        count = keys.shape[2]
        if self._kept is not None and count > self._kept:
            self.base = self.length = self.length + count - self._kept
            keys, values, count = keys[:, :, -self._kept :], values[:, :, -self._kept :], self._kept
        self._write(keys, values)
        self.length += count

    def with_block(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Visible context rows followed by the block's own: views of ``[1, kv_heads, visible + S, head_dim]``.

        Nothing is committed; the block's rows are overwritten by the next call.
        """
        self._write(keys, values)
        assert self.keys is not None and self.values is not None
        begin, end = self.rows - self.visible(), self.rows + keys.shape[2]
        return self.keys[:, :, begin:end], self.values[:, :, begin:end]

    def visible(self) -> int:
        """Context rows a block's first slot may attend to."""
        return self.rows if self.window is None else min(self.rows, self.window - 1)

    def trim(self, length: int) -> None:
        """Forget positions from ``length`` on. A sliding layer may have forgotten earlier ones for good."""
        self.length = min(self.length, length)
        self.base = min(self.base, self.length)

    def skip(self, count: int) -> None:
        """Pass over ``count`` positions whose features nobody kept; what came before is forgotten too."""
        self.length += count
        self.base = self.length

    def fork(self) -> LayerBuffer:
        """A copy that shares the arrays until either side writes."""
        other = LayerBuffer(self.window, self.chunk)
        other.base, other.length = self.base, self.length
        if self.keys is not None and self.values is not None:
            # Full slices are new handles on the same data, so that item assignment on one leaves the other alone.
            other.keys, other.values = self.keys[:], self.values[:]
        return other

    def _write(self, keys: mx.array, values: mx.array) -> None:
        """Put rows behind the committed ones, growing or compacting the buffers when they do not fit."""
        begin, end = self.rows, self.rows + keys.shape[2]
        if self.keys is None or self.values is None or end > self.keys.shape[2]:
            self._grow(keys, values)
            begin, end = self.rows, self.rows + keys.shape[2]
        assert self.keys is not None and self.values is not None
        self.keys[:, :, begin:end] = keys
        self.values[:, :, begin:end] = values

    def _grow(self, keys: mx.array, values: mx.array) -> None:
        """Make room for the rows of ``keys``; a sliding layer drops what has left its window."""
        keep = self.rows if self._kept is None else min(self.rows, self._kept)
        capacity = -(-(keep + keys.shape[2]) // self.chunk) * self.chunk
        grown = []
        for held, new in ((self.keys, keys), (self.values, values)):
            batch, heads, _, dim = new.shape
            parts = [] if held is None else [held[:, :, self.rows - keep : self.rows]]
            parts.append(mx.zeros((batch, heads, capacity - keep, dim), dtype=new.dtype))
            grown.append(mx.concatenate(parts, axis=2))
        self.base = self.length - keep
        self.keys, self.values = grown


class BlockContext:
    """The context of one sequence: one buffer per drafter layer, and whatever else a kind of drafter remembers."""

    def __init__(self, windows: Sequence[int | None], chunk: int = CHUNK) -> None:
        self.layers = [LayerBuffer(window, chunk) for window in windows]
        self._length = 0

    @property
    def length(self) -> int:
        """Committed positions; the next anchor's absolute position."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return sum(array.nbytes for array in self.arrays())

    def append(self, layers: Sequence[tuple[mx.array, mx.array]]) -> None:
        """Commit every layer's keys and values ``[1, kv_heads, n, head_dim]`` of the next ``n`` positions."""
        for buffer, (keys, values) in zip(self.layers, layers, strict=True):
            buffer.append(keys, values)
        self._length = self.layers[0].length

    def skip(self, count: int) -> None:
        """Pass over ``count`` positions without features: drafts see nothing of them or of what came before."""
        if count > 0:
            for buffer in self.layers:
                buffer.skip(count)
            self._length += count

    def trim(self, length: int) -> None:
        """Forget positions from ``length`` on."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot trim a context of {self._length} positions to {length}")
        for buffer in self.layers:
            buffer.trim(length)
        self._length = length

    def fork(self) -> BlockContext:
        """An independent copy that shares the arrays until either side writes."""
        other = BlockContext([])
        other.layers = [buffer.fork() for buffer in self.layers]
        other._length = self._length
        return other

    def export(self) -> list[mx.array | int | None]:
        """What `fill` needs to restore this context: per layer its first position, keys and values."""
        parts: list[mx.array | int | None] = []
        for buffer in self.layers:
            held = buffer.rows > 0 and buffer.keys is not None and buffer.values is not None
            parts.append(buffer.base)
            parts += [array[:, :, : buffer.rows] if held and array is not None else None for array in buffer.pair]
        return parts

    def fill(self, parts: Sequence[mx.array | int | None], length: int) -> None:
        """Restore what `export` gave into this empty context of ``length`` positions.

        Raises:
            ValueError: the parts are not those of such a context.
        """
        if len(parts) != 3 * len(self.layers):
            raise ValueError(f"{len(parts)} parts do not make a context of {len(self.layers)} layers")
        for number, buffer in enumerate(self.layers):
            base, keys, values = parts[3 * number : 3 * number + 3]
            if not isinstance(base, int) or not 0 <= base <= length:
                raise ValueError(f"layer {number} starts at {base!r}, which is outside {length} positions")
            buffer.base = buffer.length = base
            if isinstance(keys, mx.array) and isinstance(values, mx.array):
                buffer.append(keys, values)
            if buffer.length != length:
                raise ValueError(f"layer {number} has {buffer.length} positions, not {length}")
        self._length = length

    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate so that nothing stays lazy."""
        return [array for buffer in self.layers for array in buffer.pair if array is not None]
