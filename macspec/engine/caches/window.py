"""A sliding-window cache in time order, so that the newest rows can be dropped at any moment.

mlx-lm's ``RotatingKVCache`` overwrites the oldest row of a ring: once it has wrapped, a rejected row cannot be taken
back, and every pass of several rows copies the whole window. This one appends behind the window into spare rows and
moves the window to the front only when they are used up, so a rollback is a smaller index and most passes copy nothing.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache


class WindowCache(RotatingKVCache):  # type: ignore[misc]  # mlx-lm ships no types
    """Keys and values ``[1, heads, rows, dim]`` of at least the last ``max_size - 1`` positions.

    Buffer rows ``[0, _idx)`` hold positions ``[offset - _idx, offset)``. A pass of ``n`` rows sees the same rows as
    with ``RotatingKVCache``: the ``max_size - 1`` before it and its own ``n``; the mask rules are inherited.
    """

    #: Spare rows behind the window.
    step = 128
    keys: Any
    values: Any
    offset: int
    max_size: int
    _idx: int
    _shown: int = 0

    def __init__(self, max_size: int, step: int | None = None) -> None:
        super().__init__(max_size, keep=0)
        if step is not None:
            self.step = step

    @classmethod
    def from_rotating(cls, cache: Any) -> WindowCache:
        """Take over a ``RotatingKVCache`` (``keep`` must be 0) whatever its rotation; its arrays are not changed."""
        window = cls(cache.max_size)
        if cache.keys is not None:
            window.keys = cache._temporal_order(cache.keys)
            window.values = cache._temporal_order(cache.values)
            window.offset = cache.offset
            window._idx = window._shown = window.keys.shape[2]
        return window

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append ``n`` rows; return what they may attend to, ``min(max_size - 1, rows before) + n`` rows."""
        rows = keys.shape[2]
        kept = min(self._idx, self.max_size - 1)
        if self.keys is None or self._idx + rows > self.keys.shape[2]:
            spare = self.step if rows <= self.step else 0
            self.keys = self._moved(self.keys, keys, kept, spare)
            self.values = self._moved(self.values, values, kept, spare)
            self._idx = kept
        else:
            self.keys[..., self._idx : self._idx + rows, :] = keys
            self.values[..., self._idx : self._idx + rows, :] = values
        self._idx += rows
        self.offset += rows
        self._shown = kept + rows
        return self.keys_and_values()

    def _moved(self, old: mx.array | None, new: mx.array, kept: int, spare: int) -> mx.array:
        """A new buffer: the last ``kept`` valid rows of ``old``, ``new``, and ``spare`` empty rows."""
        parts = [new]
        if old is not None and kept:
            parts.insert(0, old[..., self._idx - kept : self._idx, :])
        if spare:
            parts.append(mx.zeros((*new.shape[:2], spare, new.shape[3]), new.dtype))
        return mx.concatenate(parts, axis=2) if len(parts) > 1 else new

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What the last pass was given."""
        first = self._idx - self._shown
        return self.keys[..., first : self._idx, :], self.values[..., first : self._idx, :]

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """As ``RotatingKVCache``, but rows are in time order, so a single row needs no rolled mask."""
        if N > 1:
            return super().make_mask(N, window_size=window_size, return_array=return_array)
        seen = min(self._idx, self.max_size - 1) + 1
        if window_size is None or seen <= window_size:
            return None
        return mx.arange(seen) >= seen - window_size

    def lowest(self) -> int:
        """The smallest length ``rewind`` can go back to: its window must still be whole."""
        first = self.offset - self._idx
        return 0 if first == 0 else first + self.max_size - 1

    def rewind(self, length: int) -> None:
        """Drop every position from ``length`` on (``lowest() <= length <= offset``)."""
        self._idx -= self.offset - length
        self.offset = length
        self._shown = min(self._shown, self._idx)

    def is_trimmable(self) -> bool:
        """Whether any number of rows can be dropped."""
        return self.lowest() == 0

    def trim(self, n: int) -> int:
        """Drop up to ``n`` newest rows; returns how many."""
        n = min(n, self.offset - self.lowest())
        self.rewind(self.offset - n)
        return n
