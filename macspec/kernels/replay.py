"""Gated delta-rule layers that remember a verification pass, so that keeping part of it costs no second pass.

Without a record a model with recurrent layers runs the accepted rows through all of its layers again. The record is
what a layer computed for its rows anyway: keeping ``accepted`` of them is one step of the state per row. As in
`macspec.kernels.modules`, single modules are replaced by instances, no class of mlx-lm is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.gated_delta import compute_g, gated_delta_update, normalize_qk

from macspec.kernels.calls import MAX_ROWS
from macspec.kernels.mixers import RecordedMixer, recorded
from macspec.kernels.ops import RoundOps
from macspec.kernels.replacement import adopt_module, places

#: Layers whose arithmetic `RecordedDelta` follows.
GATED_DELTA = (qwen3_next.Qwen3NextGatedDeltaNet, qwen3_5.GatedDeltaNet)


@dataclass(frozen=True)
class PassRecord:
    """What one layer needs to keep the first rows of its last pass; shapes in ``recurrent_replay.metal``.

    convolved: inputs of the convolution ``[1, width - 1 + rows, channels]``, the rows before the pass first.
    state: before the pass.
    """

    ops: RoundOps
    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array
    state: mx.array
    convolved: mx.array

    @property
    def rows(self) -> int:
        """Rows of the pass."""
        return self.k.shape[1]

    def after(self, accepted: int) -> list[mx.array]:
        """The layer's cache arrays after the first ``accepted`` rows: convolution window and recurrent state."""
        window = self.convolved.shape[1] - self.rows
        state = self.ops.recurrent_replay(self.k, self.v, self.g, self.beta, self.state, accepted)
        return [mx.contiguous(self.convolved[:, accepted : accepted + window]), state]


class RecordedDelta(nn.Module):  # type: ignore[misc]  # MLX is untyped
    """A gated delta-rule layer of qwen3_next or qwen3_5 that leaves a `PassRecord` in its cache (``cache.record``)."""

    def __init__(self, layer: nn.Module, ops: RoundOps) -> None:
        adopt_module(self, layer)
        self.ops = ops
        #: A bound method, not a module: the original must not appear twice among the parameters.
        self._stock = layer.__call__
        #: qwen3_next projects everything at once and sorts it afterwards.
        self._order = getattr(layer, "fix_query_key_value_ordering", None)

    def __call__(self, inputs: mx.array, mask: Any = None, cache: Any = None) -> Any:
        """``[1, rows, hidden]`` to the same shape; the arithmetic of the original."""
        batch, rows, _ = inputs.shape
        if batch != 1 or not 1 < rows <= MAX_ROWS or mask is not None or cache is None or cache.lengths is not None:
            return self._stock(inputs, mask=mask, cache=cache)
        mixed, z, b, a = self._project(inputs)
        window = self.conv_kernel_size - 1
        before = cache[0] if cache[0] is not None else mx.zeros((1, window, self.conv_dim), inputs.dtype)
        convolved = mx.concatenate([before, mixed], axis=1)
        cache[0] = mx.contiguous(convolved[:, -window:])
        parts = mx.split(nn.silu(self.conv1d(convolved)), [self.key_dim, 2 * self.key_dim], -1)
        q, k = (part.reshape(1, rows, self.num_k_heads, self.head_k_dim) for part in parts[:2])
        v = parts[2].reshape(1, rows, self.num_v_heads, self.head_v_dim)
        q, k = normalize_qk(q, k, inv_scale=self.head_k_dim**-0.5, eps=1e-6)
        state = cache[1]
        if state is None:
            state = mx.zeros((1, self.num_v_heads, self.head_v_dim, self.head_k_dim), mx.float32)
        out, cache[1] = gated_delta_update(
            q, k, v, a, b, self.A_log, self.dt_bias, state, None, use_kernel=not self.training
        )
        # Lazy: computed only when part of the pass is kept.
        decay = compute_g(self.A_log, a, self.dt_bias)
        cache.record = PassRecord(self.ops, k, v, decay, mx.sigmoid(b), state, convolved)
        cache.advance(rows)
        return self.out_proj(self.norm(out, z).reshape(1, rows, -1))

    def _project(self, inputs: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Inputs of the convolution ``[1, rows, channels]``, gate z, and what beta and the decay are made of."""
        rows = inputs.shape[1]
        if self._order is not None:
            q, k, v, z, b, a = self._order(self.in_proj_qkvz(inputs), self.in_proj_ba(inputs))
            return mx.concatenate([part.reshape(1, rows, -1) for part in (q, k, v)], axis=-1), z, b, a
        z = self.in_proj_z(inputs).reshape(1, rows, self.num_v_heads, self.head_v_dim)
        return self.in_proj_qkv(inputs), z, self.in_proj_b(inputs), self.in_proj_a(inputs)


def record_passes(model: nn.Module, ops: RoundOps) -> None:
    """Let the recurrent layers of ``model`` record their passes; those of a class not known here run them again."""
    for (holder, key), module in list(places(model)):
        if type(module) is RecordedDelta:
            module.ops = ops
        elif type(module) in GATED_DELTA and getattr(module, "sharding_group", None) is None:
            holder[key] = RecordedDelta(module, ops)
        elif not isinstance(holder, RecordedMixer) and (mixer := recorded(module)) is not None:
            holder[key] = mixer
