"""Target features of the training examples, computed when first needed and kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from macspec_models.training.responses import Example


class FeatureStore:
    """Float16 features ``[positions, taps * width]`` of every example, in one memory-mapped file.

    The first pass over the data pays for the target's forward passes; later epochs read them back. A flag per example
    is written after its rows, so an interrupted run recomputes at most what was in flight.
    """

    def __init__(self, folder: Path, examples: Sequence[Example], model: Any, taps: Sequence[int]) -> None:
        self.model, self.taps, self.examples = model, sorted(taps), examples
        self.width = len(taps) * model.args.hidden_size
        lengths = np.array([len(example.tokens) for example in examples])
        self.offsets = np.concatenate([[0], np.cumsum(lengths)])
        folder.mkdir(parents=True, exist_ok=True)
        shape = (int(self.offsets[-1]), self.width)
        self.rows = self._open(folder / "features.f16", np.float16, shape)
        self.ready = self._open(folder / "ready.u1", np.uint8, (len(examples),))

    @staticmethod
    def _open(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        fresh = not path.exists() or path.stat().st_size != size
        return np.memmap(path, dtype, mode="w+" if fresh else "r+", shape=shape)

    def get(self, indices: Sequence[int]) -> list[np.ndarray]:
        """Features of several examples, each ``[length, width]``; computes the missing ones in one batch."""
        missing = sorted({i for i in indices if not self.ready[i]})
        if missing:
            self._compute(missing)
        return [self.rows[self.offsets[i] : self.offsets[i + 1]] for i in indices]

    def _compute(self, indices: Sequence[int]) -> None:
        longest = max(len(self.examples[i].tokens) for i in indices)
        batch = np.zeros((len(indices), longest), np.int32)
        for row, i in enumerate(indices):
            batch[row, : len(self.examples[i].tokens)] = self.examples[i].tokens
        hidden = self.model.model.embed_tokens(mx.array(batch))
        tapped = []
        for number, layer in enumerate(self.model.model.layers[: self.taps[-1] + 1]):
            hidden = layer(hidden, "causal", cache=None)
            if number in self.taps:
                tapped.append(hidden)
        values = np.array(mx.concatenate(tapped, axis=-1).astype(mx.float16))
        for row, i in enumerate(indices):
            begin, end = self.offsets[i], self.offsets[i + 1]
            self.rows[begin:end] = values[row, : end - begin]
            self.ready[i] = 1
