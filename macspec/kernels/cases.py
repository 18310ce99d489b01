"""The cases a model's shapes give rise to: names for selection, inputs and references for probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from macspec.kernels import reference
from macspec.kernels.calls import Kernels, source_name
from macspec.kernels.probe import Arrays, Case
from macspec.kernels.source import load

#: Row counts that are probed; others use the verdict of the next larger one.
PROBED_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
#: Context lengths attention is probed at; others use the next larger, beyond the last the last.
PROBED_CONTEXTS = (1024, 4096, 16384)
#: Shape of a kernel that runs the same for every shape.
ANY_SHAPE = "any"
#: Allowed error relative to the largest output: a few units in the last place of the output type.
TOLERANCE = {mx.float32: 2e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}


def rows_bucket(rows: int) -> int:
    """The probed row count whose verdict ``rows`` rows use."""
    return next(r for r in PROBED_ROWS if rows <= r)


def context_bucket(length: int) -> int:
    """The probed context length whose verdict a context of ``length`` keys uses."""
    return next((c for c in PROBED_CONTEXTS if length <= c), PROBED_CONTEXTS[-1])


@dataclass(frozen=True)
class Format:
    """How a matrix is quantised, in the words of `mx.quantize`."""

    group_size: int
    bits: int
    mode: str = "affine"

    @classmethod
    def of(cls, module: Any) -> Format:
        """The format of a quantised module."""
        return cls(module.group_size, module.bits, module.mode)

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for MLX and the kernels."""
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    def __str__(self) -> str:
        return f"{self.bits}-bit g{self.group_size}" if self.mode == "affine" else self.mode


def qmm_shape(columns: int, width: int, form: Format) -> str:
    """Shape part of a `verify_qmm` case name."""
    return f"{columns}x{width} {form}"


def moe_shape(experts: int, top_k: int, columns: int, width: int, form: Format, per_slot: bool) -> str:
    """Shape part of a `verify_moe_qmm` case name."""
    return f"{experts}e{top_k}{'s' if per_slot else ''} {qmm_shape(columns, width, form)}"


def attention_shape(heads: int, kv_heads: int, dim: int, context: int) -> str:
    """Shape part of a `verify_attention` case name."""
    return f"{heads}/{kv_heads}h d{dim} ctx{context_bucket(context)}"


def quantised_shape(heads: int, kv_heads: int, dim: int, context: int, group_size: int, bits: int) -> str:
    """Shape part of a `verify_attention_quantised` case name."""
    return f"{attention_shape(heads, kv_heads, dim, context)} kv{bits} g{group_size}"


def vocabulary_shape(vocab: int) -> str:
    """Shape part of a `draft_confidence` case name."""
    return f"vocab {vocab}"


def choice_shape(vocab: int, temperature: float) -> str:
    """Shape part of a `keyed_choice` case name."""
    return f"{'warm' if temperature > 0 else 'greedy'} {vocabulary_shape(vocab)}"


def replay_shape(key_heads: int, value_heads: int, value_dim: int, key_dim: int) -> str:
    """Shape part of a `recurrent_replay` case name."""
    return f"{key_heads}/{value_heads}h k{key_dim} v{value_dim}"


def case_name(kernel: str, shape: str, dtype: mx.Dtype, rows: int) -> str:
    """`Case.name` of the bucket that ``rows`` fall into."""
    return f"{kernel} {shape} {plain(dtype)} rows {rows_bucket(rows)}"


def qmm_cases(kernels: Kernels, columns: int, width: int, form: Format, dtype: mx.Dtype) -> list[Case]:
    """All row counts of one quantised matrix, by `verify_qmm` and by `verify_qmm_matrix`."""
    options = form.options

    def inputs(rows: int) -> Callable[[int], Arrays]:
        def make(variant: int) -> Arrays:
            keys = mx.random.split(mx.random.key(variant), 2)
            packed = mx.quantize(mx.random.normal((columns, width), key=keys[0]).astype(dtype), **options)
            return [adversarial(mx.random.normal((rows, width), key=keys[1]), variant).astype(dtype), *packed]

        return make

    return [
        Case(
            source_name(name, form.mode),
            qmm_shape(columns, width, form),
            plain(dtype),
            rows,
            load(source_name(name, form.mode)).digest,
            inputs(rows),
            lambda *a, call=call: call(*a, **options),
            lambda *a: reference.verify_qmm(*a, **options),
            on_cpu(lambda *a: reference.verify_qmm(*a, **options)),
            TOLERANCE[dtype],
            lambda x, *packed, call=call: call(x[:1], *packed, **options),
        )
        for name, call in (("verify_qmm", kernels.verify_qmm), ("verify_qmm_matrix", kernels.verify_qmm_matrix))
        for rows in PROBED_ROWS
    ]


def moe_cases(
    kernels: Kernels,
    experts: int,
    top_k: int,
    columns: int,
    width: int,
    form: Format,
    dtype: mx.Dtype,
    per_slot: bool,
) -> list[Case]:
    """All row counts of one routed expert matrix."""
    options, name = form.options, source_name("verify_moe_qmm", form.mode)

    def inputs(rows: int) -> Callable[[int], Arrays]:
        def make(variant: int) -> Arrays:
            keys = mx.random.split(mx.random.key(variant), 3)
            weights = mx.random.normal((experts, columns, width), key=keys[0]).astype(dtype)
            shape = (rows, top_k, width) if per_slot else (rows, width)
            x = adversarial(mx.random.normal(shape, key=keys[1]), variant).astype(dtype)
            ids = mx.argsort(mx.random.uniform(shape=(rows, experts), key=keys[2]), axis=-1)[:, :top_k]
            return [x, ids, *mx.quantize(weights, **options)]

        return make

    return [
        Case(
            name,
            moe_shape(experts, top_k, columns, width, form, per_slot),
            plain(dtype),
            rows,
            load(name).digest,
            inputs(rows),
            lambda *a: kernels.verify_moe_qmm(*a, **options),
            lambda *a: reference.verify_moe_qmm(*a, **options),
            on_cpu(lambda *a: reference.verify_moe_qmm(*a, **options)),
            TOLERANCE[dtype],
            lambda x, ids, *packed: kernels.verify_moe_qmm(x[:1], ids[:1], *packed, **options),
        )
        for rows in PROBED_ROWS
    ]


def attention_cases(
    kernels: Kernels, heads: int, kv_heads: int, dim: int, dtype: mx.Dtype, contexts: Sequence[int] = PROBED_CONTEXTS
) -> list[Case]:
    """All row counts and context lengths of one attention shape."""
    scale = dim**-0.5

    def inputs(rows: int, context: int) -> Callable[[int], Arrays]:
        def make(variant: int) -> Arrays:
            keys = mx.random.split(mx.random.key(variant), 3)
            q = adversarial(mx.random.normal((1, heads, rows, dim), key=keys[0]), variant)
            k, v = (mx.random.normal((1, kv_heads, context, dim), key=n) for n in keys[1:])
            return [a.astype(dtype) for a in (q, k, v)]

        return make

    def first_row(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        seen = k.shape[2] - q.shape[2] + 1
        return kernels.verify_attention(q[:, :, :1], k[:, :, :seen], v[:, :, :seen], scale=scale)

    return [
        Case(
            "verify_attention",
            attention_shape(heads, kv_heads, dim, context),
            plain(dtype),
            rows,
            load("verify_attention").digest,
            inputs(rows, context),
            lambda *a: kernels.verify_attention(*a, scale=scale),
            lambda *a: reference.verify_attention(*a, scale=scale),
            on_cpu(lambda *a: reference.verify_attention(*a, scale=scale)),
            TOLERANCE[dtype],
            first_row,
        )
        for context in contexts
        for rows in PROBED_ROWS
    ]


def quantised_cases(
    kernels: Kernels,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: mx.Dtype,
    *,
    group_size: int,
    bits: int,
    contexts: Sequence[int] = PROBED_CONTEXTS,
) -> list[Case]:
    """All row counts and context lengths of one attention shape over quantised keys and values."""
    options: dict[str, Any] = {"scale": dim**-0.5, "group_size": group_size, "bits": bits}

    def inputs(rows: int, context: int) -> Callable[[int], Arrays]:
        def make(variant: int) -> Arrays:
            keys = mx.random.split(mx.random.key(variant), 3)
            q = adversarial(mx.random.normal((1, heads, rows, dim), key=keys[0]), variant).astype(dtype)
            k, v = (mx.random.normal((1, kv_heads, context, dim), key=n).astype(dtype) for n in keys[1:])
            return [q, *mx.quantize(k, group_size, bits), *mx.quantize(v, group_size, bits)]

        return make

    def ours(q: mx.array, *kv: mx.array) -> mx.array:
        return kernels.verify_attention_quantised(q, (kv[0], kv[1], kv[2]), (kv[3], kv[4], kv[5]), **options)

    def stock(q: mx.array, *kv: mx.array) -> mx.array:
        return reference.verify_attention_quantised(q, (kv[0], kv[1], kv[2]), (kv[3], kv[4], kv[5]), **options)

    def first_row(q: mx.array, *kv: mx.array) -> mx.array:
        seen = kv[0].shape[2] - q.shape[2] + 1
        return ours(q[:, :, :1], *(part[:, :, :seen] for part in kv))

    return [
        Case(
            "verify_attention_quantised",
            quantised_shape(heads, kv_heads, dim, context, group_size, bits),
            plain(dtype),
            rows,
            load("verify_attention_quantised").digest,
            inputs(rows, context),
            ours,
            stock,
            on_cpu(stock),
            TOLERANCE[dtype],
            first_row,
        )
        for context in contexts
        for rows in PROBED_ROWS
    ]


def adversarial(x: mx.array, variant: int) -> mx.array:
    """Variant 1 mixes magnitudes, variant 2 cancels; the others are left as they are."""
    if variant == 1:
        return x * mx.exp(3 * mx.sin(mx.arange(x.shape[-1], dtype=mx.float32)))
    if variant == 2:
        return mx.where(mx.arange(x.shape[-1]) % 2 == 0, 1.0, -1.0) * mx.ones_like(x) + 0.01 * x
    return x


def on_cpu(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """The stock op in float32 on the CPU, from the same values."""

    def run(*arrays: mx.array) -> mx.array:
        with mx.stream(mx.cpu):
            return function(*(a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a for a in arrays))

    return run


def plain(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
