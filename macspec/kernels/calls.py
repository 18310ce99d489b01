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
#: Floating-point formats of `mx.quantize`: number in the kernels, group size and bits.
FP_FORMATS = {"mxfp4": (0, 32, 4), "mxfp8": (1, 32, 8), "nvfp4": (2, 16, 4)}
#: Widths of quantised keys and values.
KV_BITS = (4, 8)

#: Packed values, scales and biases.
Packed = tuple[mx.array, mx.array, mx.array]


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

    def verify_qmm(
        self,
        x: mx.array,
        w: mx.array,
        scales: mx.array,
        biases: mx.array | None = None,
        *,
        group_size: int,
        bits: int,
        mode: str = "affine",
        rows: int | mx.array | None = None,
    ) -> mx.array:
        """``x [M, K] @ dequantised(w) [N, K]`` transposed: ``[M, N]`` in x's type; see ``verify_qmm.metal``.

        ``mode`` and ``biases`` are those of `mx.quantize`; only affine weights have biases.
        """
        parts, form = _format(w, scales, biases, group_size, bits, mode, x.shape[-1])
        count, columns = x.shape[0], w.shape[0]
        y: mx.array
        (y,) = self.built(load(source_name("verify_qmm", mode)))(
            inputs=[x, *parts, as_count(count if rows is None else rows)],
            template=[("T", x.dtype), ("BITS", bits), ("GROUP", group_size), ("ROWS", row_tile(count)), *form],
            grid=(-(-columns // 8) * 64, 1, 1),
            threadgroup=(64, 1, 1),
            output_shapes=[(count, columns)],
            output_dtypes=[x.dtype],
        )
        return y

    def verify_qmm_matrix(
        self,
        x: mx.array,
        w: mx.array,
        scales: mx.array,
        biases: mx.array | None = None,
        *,
        group_size: int,
        bits: int,
        mode: str = "affine",
        rows: int | mx.array | None = None,
    ) -> mx.array:
        """`verify_qmm` by 8x8 matrix products; see ``verify_qmm_matrix.metal``."""
        parts, form = _format(w, scales, biases, group_size, bits, mode, x.shape[-1])
        count, columns = x.shape[0], w.shape[0]
        tiles = -(-row_tile(count) // 8)
        y: mx.array
        (y,) = self.built(load(source_name("verify_qmm_matrix", mode)))(
            inputs=[x, *parts, as_count(count if rows is None else rows)],
            template=[("T", x.dtype), ("BITS", bits), ("GROUP", group_size), ("TILES", tiles), *form],
            grid=(-(-columns // 16) * 128, 1, 1),
            threadgroup=(128, 1, 1),
            output_shapes=[(count, columns)],
            output_dtypes=[x.dtype],
        )
        return y

    def verify_moe_qmm(
        self,
        x: mx.array,
        ids: mx.array,
        w: mx.array,
        scales: mx.array,
        biases: mx.array | None = None,
        *,
        group_size: int,
        bits: int,
        mode: str = "affine",
        rows: int | mx.array | None = None,
        sharers: int | None = None,
    ) -> mx.array:
        """Routed experts: ``ids uint32 [R, k]``; x ``[R, K]`` shared by the slots, or ``[R, k, K]``: ``[R, k, N]``.

        Args:
            sharers: how many assignments can share an expert, at most `MAX_ROWS`; None: the number of rows R.
        """
        parts, form = _format(w, scales, biases, group_size, bits, mode, x.shape[-1])
        (count, slots), columns, per_slot = ids.shape, w.shape[1], x.ndim == 3
        y: mx.array
        (y,) = self.built(load(source_name("verify_moe_qmm", mode)))(
            inputs=[
                x.reshape(-1, x.shape[-1]),
                ids.reshape(-1).astype(mx.uint32),
                *parts,
                as_count(count if rows is None else rows),
            ],
            template=[
                ("T", x.dtype),
                ("BITS", bits),
                ("GROUP", group_size),
                ("ROWS", row_tile(count if sharers is None else sharers)),
                ("TOPK", slots),
                ("PER_SLOT", per_slot),
                *form,
            ],
            grid=(-(-columns // 8) * 64, count * slots, 1),
            threadgroup=(64, 1, 1),
            output_shapes=[(count, slots, columns)],
            output_dtypes=[x.dtype],
        )
        return y

    def verify_attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        window: int = 0,
        rows: int | mx.array | None = None,
        split: int = SPLIT,
    ) -> mx.array:
        """Causal attention of ``q [1, H, M, D]`` over ``k, v [1, Hkv, L, D]``: ``[1, M, H, D]``; window 0: all keys.

        Raises:
            ValueError: for a head dimension or a number of query rows the kernel does not take on this device.
        """
        if k.shape != v.shape or k.shape[3] != q.shape[3]:
            raise ValueError(f"verify_attention does not take queries {q.shape} over keys {k.shape}")
        template = [("T", q.dtype), ("D", q.shape[3]), ("SPLIT", split)]
        return self._attention("verify_attention", q, (k,), (v,), template, scale, window, rows, split)

    def verify_attention_quantised(
        self,
        q: mx.array,
        k: Packed,
        v: Packed,
        *,
        scale: float,
        group_size: int,
        bits: int,
        window: int = 0,
        rows: int | mx.array | None = None,
        split: int = SPLIT,
    ) -> mx.array:
        """`verify_attention` over what mlx-lm's ``QuantizedKVCache`` holds: packed rows are ``D * bits / 32`` words."""
        dim = q.shape[3]
        fits = bits in KV_BITS and group_size in GROUP_SIZES and dim % group_size == 0
        if not fits or k[0].shape[3] * 32 != dim * bits:
            raise ValueError(f"no verification kernel for keys of {bits} bits in groups of {group_size}")
        template = [("T", q.dtype), ("D", dim), ("SPLIT", split), ("BITS", bits), ("GROUP", group_size)]
        return self._attention("verify_attention_quantised", q, k, v, template, scale, window, rows, split)

    def _attention(
        self,
        name: str,
        q: mx.array,
        k: tuple[mx.array, ...],
        v: tuple[mx.array, ...],
        template: list[tuple[str, Any]],
        scale: float,
        window: int,
        rows: int | mx.array | None,
        split: int,
    ) -> mx.array:
        (batch, heads, count, dim), kv_heads, length = q.shape, k[0].shape[1], k[0].shape[2]
        if batch != 1 or dim not in HEAD_DIMS or heads % kv_heads or length < count or count > MAX_ROWS:
            raise ValueError(f"{name} does not take queries {q.shape} over keys {k[0].shape}")
        threads = -(-count * (heads // kv_heads) // 8) * 32
        if threads > self.max_threads:
            raise ValueError(
                f"{count} rows of {heads // kv_heads} heads need {threads} threads, {self.max_threads} allowed"
            )
        first = max(0, length - count - window + 1) // split if window else 0
        parts = -(-length // split) - first
        count_buffer = as_count(count if rows is None else rows)
        partial, stats = self.built(load(name))(
            inputs=[q, *k, *v, count_buffer, mx.array([first, window], mx.int32), mx.array([scale], mx.float32)],
            template=template,
            grid=(threads, kv_heads, parts),
            threadgroup=(threads, 1, 1),
            output_shapes=[(heads, count, parts, dim), (heads, count, parts, 2)],
            output_dtypes=[mx.float32, mx.float32],
        )
        out: mx.array
        (out,) = self.built(load("verify_attention_merge"))(
            inputs=[partial, stats, count_buffer],
            template=[("T", q.dtype)],
            grid=(dim, heads, count),
            threadgroup=(dim, 1, 1),
            output_shapes=[(1, count, heads, dim)],
            output_dtypes=[q.dtype],
        )
        return out

    def recurrent_replay(
        self, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, accepted: int | mx.array
    ) -> mx.array:
        """GatedDeltaNet state after ``accepted`` rows; shapes in ``recurrent_replay.metal``."""
        batch, value_heads, value_dim, key_dim = state.shape
        if key_dim % 32:
            raise ValueError(f"recurrent_replay needs a key dimension divisible by 32, not {key_dim}")
        new: mx.array
        (new,) = self.built(load("recurrent_replay"))(
            inputs=[k, v, g, beta, state, as_count(accepted)],
            template=[("StT", state.dtype), ("DK", key_dim)],
            grid=(32, value_dim, batch * value_heads),
            threadgroup=(32, 4, 1),
            output_shapes=[state.shape],
            output_dtypes=[state.dtype],
        )
        return new


def source_name(kernel: str, mode: str) -> str:
    """The source of ``kernel`` for a format of `mx.quantize`."""
    return kernel if mode == "affine" else f"{kernel}_fp"


def takes(group_size: int, bits: int, mode: str) -> bool:
    """Whether there are kernels for a format of `mx.quantize`."""
    if mode == "affine":
        return bits in AFFINE_BITS and group_size in GROUP_SIZES
    return mode in FP_FORMATS and FP_FORMATS[mode][1:] == (group_size, bits)


def _format(
    w: mx.array, scales: mx.array, biases: mx.array | None, group_size: int, bits: int, mode: str, width: int
) -> tuple[list[mx.array], list[tuple[str, Any]]]:
    """The arrays of a quantised matrix and the template arguments its format adds; ValueError when they do not fit."""
    if not takes(group_size, bits, mode) or (biases is None) == (mode == "affine"):
        raise ValueError(f"no verification kernel for {bits} bits in groups of {group_size} ({mode})")
    if w.shape[-1] * 32 != width * bits or scales.shape[-1] * group_size != width:
        raise ValueError(f"weights {w.shape} and scales {scales.shape} do not belong to inputs of width {width}")
    if biases is None:
        return [w, scales], [("FORMAT", FP_FORMATS[mode][0])]
    return [w, scales, biases], []
