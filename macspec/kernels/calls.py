"""The kernels as functions on arrays: shapes, grids and templates in one place.

`Kernels` is built on MLX's ``metal_kernel`` on a Mac and on the CPU executor in tests; it does not decide whether a
kernel should be used (see `library`). Every function checks what its contract demands and raises ValueError otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from macspec.kernels.source import KernelSource, load

#: Row capacities a kernel is compiled for. The row count itself is data, so a round never waits for a compiler.
ROW_TILES = (1, 2, 4, 8, 16)
MAX_ROWS = 16
#: Keys per part of the split attention. Fixed: a row's bits must not depend on the length of the context after it.
SPLIT = 512
HEAD_DIMS = (64, 96, 128, 256)
AFFINE_BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


def row_tile(rows: int) -> int:
    """The smallest capacity for ``rows``; ValueError above `MAX_ROWS`."""
    for tile in ROW_TILES:
        if rows <= tile:
            return tile
    raise ValueError(f"{rows} rows, the verification kernels take at most {MAX_ROWS}")


def as_count(rows: int | mx.array) -> mx.array:
    """A row count as the int32 [1] buffer the kernels read; arrays pass, so it may be computed on the device."""
    return rows if isinstance(rows, mx.array) else mx.array([rows], dtype=mx.int32)


class Kernels:
    """All kernels of the package over one ``metal_kernel`` function."""

    def __init__(self, metal_kernel: Callable[..., Any] | None = None, *, max_threads: int = 1024) -> None:
        """``metal_kernel`` defaults to MLX's; ``max_threads`` is 512 on M1 and M2, whose pipelines refuse more."""
        self._make = metal_kernel if metal_kernel is not None else mx.fast.metal_kernel
        self.max_threads = max_threads
        self._built: dict[str, Any] = {}

    def built(self, source: KernelSource) -> Any:
        """The compiled-on-demand kernel object."""
        key = f"macspec_{source.name}_{source.digest}"
        if key not in self._built:
            self._built[key] = self._make(
                name=key,
                input_names=list(source.inputs),
                output_names=list(source.outputs),
                source=source.body,
                header=source.header,
                ensure_row_contiguous=not source.strided,
            )
        return self._built[key]

    def draft_confidence(self, logits: mx.array, rows: int | mx.array | None = None) -> tuple[mx.array, mx.array]:
        """Arg max and confidence of every row of ``logits [R, V]``: uint32 [R] and float32 [R, 4]."""
        count, vocab = logits.shape
        threads = min(self.max_threads, -(-vocab // 32) * 32)
        token, stats = self.built(load("draft_confidence"))(
            inputs=[logits, as_count(count if rows is None else rows)],
            template=[("T", logits.dtype)],
            grid=(count * threads, 1, 1),
            threadgroup=(threads, 1, 1),
            output_shapes=[(count,), (count, 4)],
            output_dtypes=[mx.uint32, mx.float32],
        )
        return token, stats

    def keyed_choice(
        self,
        logits: mx.array,
        temperature: float,
        seed: int,
        position: int,
        rows: int | mx.array | None = None,
    ) -> mx.array:
        """The keyed token of every row of processed ``logits [R, V]``: uint32 [R]; row r is at ``position + r``."""
        count, vocab = logits.shape
        threads = min(self.max_threads, -(-vocab // 32) * 32)
        key = mx.array([position & 0xFFFFFFFF, seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], dtype=mx.uint32)
        token: mx.array
        (token,) = self.built(load("keyed_choice"))(
            inputs=[logits, key, mx.array([temperature], mx.float32), as_count(count if rows is None else rows)],
            template=[("T", logits.dtype)],
            grid=(count * threads, 1, 1),
            threadgroup=(threads, 1, 1),
            output_shapes=[(count,)],
            output_dtypes=[mx.uint32],
        )
        return token

    def accept_prefix(
        self, draft: mx.array, choice: mx.array, depth: int | mx.array, eos: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Committed tokens int32 [R] padded with -1, and (accepted, committed, next anchor, ended) int32 [4]."""
        if choice.size > 32:
            raise ValueError(f"accept_prefix takes at most 32 rows, not {choice.size}")
        tokens, summary = self.built(load("accept_prefix"))(
            inputs=[draft, choice, as_count(depth), eos],
            grid=(32, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[choice.shape, (4,)],
            output_dtypes=[mx.int32, mx.int32],
        )
        return tokens, summary
