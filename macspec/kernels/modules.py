"""Put the verification kernels into an mlx-lm model, instance by instance.

No class and no function of mlx-lm is changed: single modules are replaced by instances that share the same arrays and
parameter names, and `Replacement.remove` puts the originals back. Every replaced module decides call by call: up to 16
rows of one sequence go to the kernel when the library uses it, everything else to MLX's own op.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen3, qwen3_moe, qwen3_next
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from macspec.kernels import cases
from macspec.kernels.calls import AFFINE_BITS, GROUP_SIZES, HEAD_DIMS, MAX_ROWS
from macspec.kernels.library import KernelLibrary
from macspec.kernels.probe import Case

#: Attention classes whose arithmetic `VerifyAttention` follows.
PLAIN_ATTENTION = (llama.Attention, qwen3.Attention, qwen3_moe.Attention)
GATED_ATTENTION = (qwen3_next.Qwen3NextAttention,)


def _adopt(new: nn.Module, old: nn.Module) -> None:
    """Make ``new`` hold the arrays, children and plain attributes of ``old``."""
    nn.Module.__init__(new)
    for name, value in old.items():
        new[name] = value
    for name, value in vars(old).items():
        object.__setattr__(new, name, value)


class VerifyLinear(nn.QuantizedLinear):  # type: ignore[misc]  # MLX is untyped
    """A quantised linear layer that verifies with `verify_qmm`."""

    def __init__(self, linear: nn.QuantizedLinear, library: KernelLibrary) -> None:
        _adopt(self, linear)
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
        _adopt(self, embedding)
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
        _adopt(self, experts)
        self._library, self._top_k, self._per_slot = library, top_k, per_slot

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> Any:
        """As in mlx-lm: x ``[..., 1 or k, 1, K]`` with indices ``[..., k]``, or both flattened and sorted."""
        rows, rest = divmod(indices.size, self._top_k)
        width, columns = self.input_dims, self.output_dims
        if rest or not 0 < rows <= MAX_ROWS or not _uniform(self, x):
            return super().__call__(x, indices, sorted_indices)
        shape = cases.moe_shape(
            self.num_experts, self._top_k, columns, width, self.bits, self.group_size, self._per_slot
        )
        kernels = self._library.kernels
        name = cases.case_name("verify_moe_qmm", shape, x.dtype, rows)
        if kernels is None or not self._library.uses(name):
            return super().__call__(x, indices, sorted_indices)
        flat = x.reshape(-1, width)
        if flat.shape[0] == indices.size:  # one input per assignment
            flat, ids = flat[:, None], indices.reshape(-1, 1)
        else:
            ids = indices.reshape(rows, self._top_k)
        packed = (self["weight"], self["scales"], self["biases"])
        y = kernels.verify_moe_qmm(flat, ids, *packed, group_size=self.group_size, bits=self.bits, sharers=rows)
        y = y.reshape(*indices.shape, 1, columns)
        return y + mx.expand_dims(self["bias"][indices], -2) if "bias" in self else y


class VerifyAttention(nn.Module):  # type: ignore[misc]  # MLX is untyped
    """Attention of llama, qwen3, qwen3_moe, and the gated one of qwen3_next and qwen3_5, by `verify_attention`."""

    def __init__(self, attention: nn.Module, library: KernelLibrary) -> None:
        _adopt(self, attention)
        self._library = library
        self._gated = isinstance(attention, GATED_ATTENTION)
        #: A bound method, not a module: the original must not appear twice among the parameters.
        self._stock = attention.__call__
        self._heads, self._kv_heads = _head_counts(attention)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        """``[1, L, hidden]`` to the same shape; the arithmetic of the original around another attention op."""
        batch, rows, _ = x.shape
        length = rows + (cache.offset if cache is not None and isinstance(cache.offset, int) else 0)
        if not self._takes(x, mask, cache) or not self._library.uses(self._case(length, rows, x.dtype)):
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
        out = kernels.verify_attention(queries, keys, values, scale=self.scale, rows=self._library.row_count)
        out = out.reshape(batch, rows, -1)
        return self.o_proj(out if gate is None else out * mx.sigmoid(gate))

    def _case(self, length: int, rows: int, dtype: mx.Dtype) -> str:
        dim = round(self.scale**-2)
        return cases.case_name(
            "verify_attention", cases.attention_shape(self._heads, self._kv_heads, dim, length), dtype, rows
        )

    def _takes(self, x: mx.array, mask: Any, cache: Any) -> bool:
        kernels = self._library.kernels
        if kernels is None or x.shape[0] != 1 or x.shape[1] > MAX_ROWS or hasattr(cache, "bits"):
            return False
        threads = -(-x.shape[1] * (self._heads // self._kv_heads) // 8) * 32
        plain = isinstance(mask, str) and mask == "causal" or (mask is None and x.shape[1] == 1)
        return plain and threads <= kernels.max_threads and x.dtype in cases.TOLERANCE


#: Where a module sits: the module, list or dict that holds it, and its name or index there.
Place = tuple[Any, Any]


class Replacement:
    """The modules of one model that were replaced."""

    def __init__(self, originals: list[tuple[Place, nn.Module]], wanted: list[Case]) -> None:
        self._originals = originals
        #: What the library should `prepare`.
        self.cases = wanted

    def __len__(self) -> int:
        return len(self._originals)

    def remove(self) -> None:
        """Put the original modules back, last replaced first."""
        for (holder, key), module in reversed(self._originals):
            holder[key] = module
        self._originals = []


def install(model: nn.Module, library: KernelLibrary, *, attention: bool = True) -> Replacement:
    """Replace what the kernels can do in ``model``; nothing when the library has no kernels.

    Afterwards call ``library.prepare(replacement.cases)``. Layers with other formats or groups, and attention classes
    or head dimensions without a kernel, keep MLX's ops.
    """
    kernels = library.kernels
    originals: list[tuple[Place, nn.Module]] = []
    wanted: dict[str, Case] = {}
    if kernels is None:
        return Replacement(originals, [])

    def replace(place: Place, old: nn.Module, new: nn.Module, found: list[Case]) -> None:
        holder, key = place
        holder[key] = new
        originals.append((place, old))
        wanted.update({case.name: case for case in found})

    top_k = _top_k(model)
    for place, module in list(_places(model)):
        if type(module) is nn.QuantizedLinear and _affine(module):
            width = module.scales.shape[1] * module.group_size
            shape = (module.weight.shape[0], width, module.bits, module.group_size)
            found = cases.qmm_cases(kernels, *shape, module.scales.dtype)
            replace(place, module, VerifyLinear(module, library), found)
        elif type(module) is nn.QuantizedEmbedding and _affine(module):
            shape = (module.num_embeddings, module.dims, module.bits, module.group_size)
            found = cases.qmm_cases(kernels, *shape, module.scales.dtype)
            replace(place, module, VerifyEmbedding(module, library), found)
        elif type(module) is QuantizedSwitchLinear and _affine(module) and top_k:
            per_slot = place[1] == "down_proj"
            size = (module.num_experts, top_k, module.output_dims, module.input_dims, module.bits, module.group_size)
            found = cases.moe_cases(kernels, *size, module.scales.dtype, per_slot)
            replace(place, module, VerifySwitchLinear(module, library, top_k, per_slot), found)
    dtype = _activation_dtype(model)
    for place, module in list(_places(model)) if attention else ():
        dim = round(module.scale**-2) if type(module) in PLAIN_ATTENTION + GATED_ATTENTION else 0
        if dim in HEAD_DIMS:
            found = cases.attention_cases(kernels, *_head_counts(module), dim, dtype)
            replace(place, module, VerifyAttention(module, library), found)
    return Replacement(originals, list(wanted.values()))


def _places(holder: Any) -> Iterator[tuple[Place, Any]]:
    """Every module below ``holder`` and where it sits."""
    for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if isinstance(value, nn.Module):
            yield (holder, key), value
        if isinstance(value, dict | list):
            yield from _places(value)


def _qmm(module: Any, library: KernelLibrary, x: mx.array) -> mx.array | None:
    """The product by the kernel, or None when MLX's own op should run."""
    width = x.shape[-1]
    rows = x.size // width
    if library.kernels is None or not 0 < rows <= MAX_ROWS or not _uniform(module, x):
        return None
    columns = module["weight"].shape[0]
    shape = cases.qmm_shape(columns, width, module.bits, module.group_size)
    names = (cases.case_name(kernel, shape, x.dtype, rows) for kernel in ("verify_qmm", "verify_qmm_matrix"))
    best = library.best(*names)
    if best is None:
        return None
    call = (library.kernels.verify_qmm, library.kernels.verify_qmm_matrix)[best]
    packed = (module["weight"], module["scales"], module["biases"])
    form = {"group_size": module.group_size, "bits": module.bits}
    y = call(x.reshape(rows, width), *packed, **form, rows=library.row_count)
    return y.reshape(*x.shape[:-1], columns)


def _uniform(module: Any, x: mx.array) -> bool:
    return x.dtype in cases.TOLERANCE and x.dtype == module["scales"].dtype


def _affine(module: Any) -> bool:
    plain = module.mode == "affine" and module.get("biases") is not None
    return plain and module.bits in AFFINE_BITS and module.group_size in GROUP_SIZES


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
