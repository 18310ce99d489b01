"""The small ops of a round: each by its kernel where the library uses it, else by what the loop runs without kernels.

Both give the same result within the bound the kernel states. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx

from macspec.kernels import cases, reference
from macspec.kernels.calls import MAX_ROWS, Kernels
from macspec.kernels.library import KernelLibrary
from macspec_models.drafters.confidence import read

#: Types of logits, activations and token ids the kernels take.
DTYPES = (mx.float32, mx.float16, mx.bfloat16, mx.int32)


class RoundOps:
    """Ops over one library; None stands for a machine without kernels."""

    def __init__(self, library: KernelLibrary | None = None) -> None:
        self.library = library

    def keyed_choice(self, logits: mx.array, temperature: float, seed: int, position: int) -> mx.array:
        """The keyed token of every row of processed ``logits [R, V]``: int32 [R]; row r is at ``position + r``."""
        shape = cases.choice_shape(logits.shape[1], temperature)
        kernels = self._kernels("keyed_choice", shape, logits.dtype, logits.shape[0])
        if kernels is None or self.library is None:
            return reference.keyed_choice(logits, temperature, seed, position).astype(mx.int32)
        return kernels.keyed_choice(logits, temperature, seed, position, rows=self.library.row_count).astype(mx.int32)

    def draft_confidence(self, scores: mx.array) -> tuple[mx.array, mx.array]:
        """Arg max int32 [R] and (probability, gap, entropy) float32 [R, 3] of draft ``scores [R, V]``."""
        shape = cases.vocabulary_shape(scores.shape[1])
        kernels = self._kernels("draft_confidence", shape, scores.dtype, scores.shape[0])
        if kernels is None:
            return read(scores)
        tokens, stats = kernels.draft_confidence(scores)
        return tokens.astype(mx.int32), stats[:, 1:]

    def accept_prefix(self, draft: mx.array, choice: mx.array, depth: mx.array) -> tuple[mx.array, mx.array]:
        """What a verified draft ``[R - 1]`` of which ``depth`` int32 [1] count leaves of ``choice [R]``, all int32.

        Returns:
            The choices up to and including the bonus token ``[R]``, padded with -1, and (accepted, committed, last
            committed token, 0) ``[4]``. Where an answer ends is left to the host, which knows stop strings too.
        """
        kernels = self._kernels("accept_prefix", cases.ANY_SHAPE, choice.dtype, choice.size)
        op = reference.accept_prefix if kernels is None else kernels.accept_prefix
        return op(draft, choice, depth, mx.array([-1], mx.int32))

    @contextmanager
    def counting(self, rows: mx.array) -> Iterator[None]:
        """Kernels asked for inside skip the rows from ``rows`` int32 [1] on; MLX's own ops compute them all."""
        library = self.library
        if library is None:
            yield
            return
        library.row_count = rows
        try:
            yield
        finally:
            library.row_count = None

    def recurrent_replay(
        self, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, accepted: int
    ) -> mx.array:
        """GatedDeltaNet state after ``accepted`` rows; shapes in ``recurrent_replay.metal``."""
        shape = cases.replay_shape(k.shape[2], v.shape[2], v.shape[3], k.shape[3])
        kernels = self._kernels("recurrent_replay", shape, k.dtype, accepted)
        if kernels is None or k.shape[3] % 32:
            return reference.recurrent_replay(k, v, g, beta, state, accepted)
        return kernels.recurrent_replay(k, v, g, beta, state, accepted)

    def _kernels(self, name: str, shape: str, dtype: mx.Dtype, rows: int) -> Kernels | None:
        """The kernels when ``name`` is to run for this case."""
        library = self.library
        if library is None or not 0 < rows <= MAX_ROWS or dtype not in DTYPES:
            return None
        return library.kernels if library.uses(cases.case_name(name, shape, dtype, rows)) else None
