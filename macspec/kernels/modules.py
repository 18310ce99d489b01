"""Put the verification kernels into an mlx-lm model, instance by instance.

No class and no function of mlx-lm is changed: single modules are replaced by instances that share the same arrays and
parameter names, and `Replacement.remove` puts the originals back. Every replaced module decides call by call: up to 16
rows of one sequence go to the kernel when the library uses it, everything else to MLX's own op.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen3, qwen3_moe, qwen3_next
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from macspec.kernels import cases
from macspec.kernels.calls import HEAD_DIMS, KV_BITS, MAX_ROWS, Kernels, source_name, takes
from macspec.kernels.library import KernelLibrary
from macspec.kernels.probe import Case
from macspec.kernels.replacement import Replacement, adopt_module, places

#: Group size of quantised keys and values, that of `macspec.engine.caches.quantize_layers`.
KV_GROUP = 64
#: Matrices there are kernels for.
QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding)
#: Attention classes whose arithmetic `VerifyAttention` follows.
PLAIN_ATTENTION = (llama.Attention, qwen3.Attention, qwen3_moe.Attention)
GATED_ATTENTION = (qwen3_next.Qwen3NextAttention,)


class VerifyLinear(nn.QuantizedLinear):  # type: ignore[misc]  # MLX is untyped
    """A quantised linear layer that verifies with `verify_qmm`."""

    def __init__(self, linear: nn.QuantizedLinear, library: KernelLibrary) -> None:
        adopt_module(self, linear)
        self._library = library

    def __call__(self, x: mx.array) -> mx.array:
        """``[..., K]`` to ``[..., N]``."""
        y = _qmm(self, self._library, x)
        if y is None:
            y = super().__call__(x)
        elif "bias" in self:
            y = y + self["bias"]
        return y


class VerifyEmbedding(nn.QuantizedEmbedding):  # type: ignore[misc]  # MLX is untyped
    """A quantised embedding whose tied output head verifies with `verify_qmm`."""

    def __init__(self, embedding: nn.QuantizedEmbedding, library: KernelLibrary) -> None:
        adopt_module(self, embedding)
        self._library = library

    def as_linear(self, x: mx.array) -> mx.array:
        """Hidden states ``[..., K]`` to logits ``[..., N]``."""
        y = _qmm(self, self._library, x)
        if y is None:
            y = super().as_linear(x)
        return y


class VerifySwitchLinear(QuantizedSwitchLinear):  # type: ignore[misc]  # mlx-lm is untyped
    """Quantised experts that verify with `verify_moe_qmm`, whether or not mlx-lm sorted the rows by expert."""

    def __init__(self, experts: QuantizedSwitchLinear, library: KernelLibrary, top_k: int, per_slot: bool) -> None:
        adopt_module(self, experts)
        self._library, self._top_k, self._per_slot = library, top_k, per_slot

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> Any:
        """As in mlx-lm: x ``[..., 1 or k, 1, K]`` with indices ``[..., k]``, or both flattened and sorted."""
        rows, rest = divmod(indices.size, self._top_k)
        width, columns = self.input_dims, self.output_dims
        if rest or not 0 < rows <= MAX_ROWS or not _uniform(self, x):
            return super().__call__(x, indices, sorted_indices)
        form = cases.Format.of(self)
        shape = cases.moe_shape(self.num_experts, self._top_k, columns, width, form, self._per_slot)
        kernels = self._library.kernels
        name = cases.case_name(source_name("verify_moe_qmm", self.mode), shape, x.dtype, rows)
        if kernels is None or not self._library.uses(name):
            return super().__call__(x, indices, sorted_indices)
        flat, count = x.reshape(-1, width), self._library.row_count
        if flat.shape[0] == indices.size:  # one input per assignment, perhaps in the order of experts
            flat, ids = flat[:, None], indices.reshape(-1, 1)
            count = None if count is None or sorted_indices else count * self._top_k
        else:
            ids = indices.reshape(rows, self._top_k)
        y = kernels.verify_moe_qmm(flat, ids, *_packed(self), **form.options, sharers=rows, rows=count)
        y = y.reshape(*indices.shape, 1, columns)
        return y + mx.expand_dims(self["bias"][indices], -2) if "bias" in self else y


class VerifyAttention(nn.Module):  # type: ignore[misc]  # MLX is untyped
    """Attention of llama, qwen3, qwen3_moe, and the gated one of qwen3_next and qwen3_5, by `verify_attention`.

    Over a quantised cache by `verify_attention_quantised`.
    """

    def __init__(self, attention: nn.Module, library: KernelLibrary) -> None:
        adopt_module(self, attention)
        self._library = library
        self._gated = isinstance(attention, GATED_ATTENTION)
        #: A bound method, not a module: the original must not appear twice among the parameters.
        self._stock = attention.__call__
        self._heads, self._kv_heads = _head_counts(attention)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        """``[1, L, hidden]`` to the same shape; the arithmetic of the original around another attention op."""
        batch, rows, _ = x.shape
        length = rows + (cache.offset if cache is not None and isinstance(cache.offset, int) else 0)
        if not self._takes(x, mask, cache) or not self._library.uses(self._case(length, rows, x.dtype, cache)):
            return self._stock(x, mask=mask, cache=cache)
        queries, gate = self.q_proj(x).reshape(batch, rows, self._heads, -1), None
        if self._gated:
            queries, gate = mx.split(queries, 2, axis=-1)
            gate = gate.reshape(batch, rows, -1)
        keys = self.k_proj(x).reshape(batch, rows, self._kv_heads, -1)
        values = self.v_proj(x).reshape(batch, rows, self._kv_heads, -1).transpose(0, 2, 1, 3)
        if "q_norm" in self:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = queries.transpose(0, 2, 1, 3), keys.transpose(0, 2, 1, 3)
        if cache is not None:
            queries, keys = self.rope(queries, offset=cache.offset), self.rope(keys, offset=cache.offset)
            keys, values = cache.update_and_fetch(keys, values)
        else:
            queries, keys = self.rope(queries), self.rope(keys)
        kernels = self._library.kernels
        assert kernels is not None  # `uses` is false without kernels
        options = {"scale": self.scale, "rows": self._library.row_count}
        if isinstance(keys, tuple | list):
            options |= {"group_size": cache.group_size, "bits": cache.bits}
            out = kernels.verify_attention_quantised(queries, tuple(keys), tuple(values), **options)
        else:
            out = kernels.verify_attention(queries, keys, values, **options)
        out = out.reshape(batch, rows, -1)
        return self.o_proj(out if gate is None else out * mx.sigmoid(gate))

    def _case(self, length: int, rows: int, dtype: mx.Dtype, cache: Any) -> str:
        sizes = (self._heads, self._kv_heads, round(self.scale**-2), length)
        if hasattr(cache, "bits"):
            shape = cases.quantised_shape(*sizes, cache.group_size, cache.bits)
            return cases.case_name("verify_attention_quantised", shape, dtype, rows)
        return cases.case_name("verify_attention", cases.attention_shape(*sizes), dtype, rows)

    def _takes(self, x: mx.array, mask: Any, cache: Any) -> bool:
        kernels = self._library.kernels
        if kernels is None or x.shape[0] != 1 or x.shape[1] > MAX_ROWS:
            return False
        if hasattr(cache, "bits") and (cache.bits not in KV_BITS or round(self.scale**-2) % cache.group_size):
            return False
        threads = -(-x.shape[1] * (self._heads // self._kv_heads) // 8) * 32
        plain = isinstance(mask, str) and mask == "causal" or (mask is None and x.shape[1] == 1)
        return plain and threads <= kernels.max_threads and x.dtype in cases.TOLERANCE


def install(model: nn.Module, library: KernelLibrary, *, kv_bits: int | None = None) -> Replacement:
    """Replace what the kernels can do in ``model``; nothing when the library has no kernels.

    Afterwards call ``library.prepare(replacement.cases)``. Layers with other formats or groups, and attention classes
    or head dimensions without a kernel, keep MLX's ops.

    Args:
        kv_bits: width of the keys and values the caches will hold; None: not quantised.
    """
    kernels, replaced = library.kernels, Replacement()
    if kernels is None:
        return replaced
    top_k, dtype = _top_k(model), _activation_dtype(model)
    for place, module in list(places(model)):
        if type(module) in QUANTISED and _supported(module):
            found = _matrix_cases(kernels, module, dtype)
            kind = VerifyLinear if type(module) is nn.QuantizedLinear else VerifyEmbedding
            replaced.put(place, module, kind(module, library), found)
        elif type(module) is QuantizedSwitchLinear and _supported(module) and top_k:
            per_slot = place[1] == "down_proj"
            size = (module.num_experts, top_k, module.output_dims, module.input_dims)
            own = module.scales.dtype if module.mode == "affine" else dtype
            found = cases.moe_cases(kernels, *size, cases.Format.of(module), own, per_slot)
            replaced.put(place, module, VerifySwitchLinear(module, library, top_k, per_slot), found)
    for place, module in list(places(model)):
        dim = round(module.scale**-2) if type(module) in PLAIN_ATTENTION + GATED_ATTENTION else 0
        if dim in HEAD_DIMS:
            sizes = (*_head_counts(module), dim, dtype)
            if kv_bits is None:
                found = cases.attention_cases(kernels, *sizes)
            else:
                found = cases.quantised_cases(kernels, *sizes, group_size=KV_GROUP, bits=kv_bits)
            replaced.put(place, module, VerifyAttention(module, library), found)
    return replaced


def _matrix_cases(kernels: Kernels, module: Any, dtype: mx.Dtype) -> list[Case]:
    width = module.weight.shape[1] * 32 // module.bits
    own = module.scales.dtype if module.mode == "affine" else dtype
    return cases.qmm_cases(kernels, module.weight.shape[0], width, cases.Format.of(module), own)


def _qmm(module: Any, library: KernelLibrary, x: mx.array) -> mx.array | None:
    """The product by the kernel, or None when MLX's own op should run."""
    width = x.shape[-1]
    rows = x.size // width
    if library.kernels is None or not 0 < rows <= MAX_ROWS or not _uniform(module, x):
        return None
    columns, form = module["weight"].shape[0], cases.Format.of(module)
    shape = cases.qmm_shape(columns, width, form)
    kinds = (source_name(kernel, form.mode) for kernel in ("verify_qmm", "verify_qmm_matrix"))
    best = library.best(*(cases.case_name(kind, shape, x.dtype, rows) for kind in kinds))
    if best is None:
        return None
    call = (library.kernels.verify_qmm, library.kernels.verify_qmm_matrix)[best]
    y = call(x.reshape(rows, width), *_packed(module), **form.options, rows=library.row_count)
    return y.reshape(*x.shape[:-1], columns)


def _packed(module: Any) -> list[mx.array]:
    """The arrays of a quantised module as `mx.quantize` gives them."""
    return [module[name] for name in ("weight", "scales", "biases") if name in module]


def _uniform(module: Any, x: mx.array) -> bool:
    return x.dtype in cases.TOLERANCE and (module.mode != "affine" or x.dtype == module["scales"].dtype)


def _supported(module: Any) -> bool:
    # Some nvfp4 checkpoints carry one more scale for the whole matrix; MLX's own op knows what to do with it.
    scaled = getattr(module, "global_scale", None) is not None
    return takes(module.group_size, module.bits, module.mode) and not scaled


def _head_counts(attention: Any) -> tuple[int, int]:
    if isinstance(attention, GATED_ATTENTION):
        return attention.num_attention_heads, attention.num_key_value_heads
    return attention.n_heads, attention.n_kv_heads


def _top_k(model: Any) -> int:
    """Experts per token of a mixture-of-experts model, 0 for others."""
    arguments = getattr(model, "args", None)
    text = getattr(arguments, "text_config", None)
    value = text.get("num_experts_per_tok") if isinstance(text, dict) else getattr(arguments, "num_experts_per_tok", 0)
    return int(value or 0)


def _activation_dtype(model: nn.Module) -> Any:
    """The type activations have: that of the norms' weights."""
    for name, module in model.named_modules():
        if isinstance(module, nn.RMSNorm) and "weight" in module and name:
            return module.weight.dtype
    return mx.float32
