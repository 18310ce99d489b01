"""What the kernels must equal, in MLX's own ops. These also run whenever a kernel is not used.

Signatures are those of `macspec.kernels.calls.Kernels`, without the row count on the device.
"""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import quantized_scaled_dot_product_attention
from mlx_lm.models.gated_delta import gated_delta_kernel, gated_delta_ops

from macspec.engine.noise import keyed_gumbel
from macspec.kernels.calls import Packed


def draft_confidence(logits: mx.array) -> tuple[mx.array, mx.array]:
    """Arg max uint32 [R] and (log-sum-exp, top probability, gap, entropy) float32 [R, 4] of ``logits [R, V]``."""
    x = logits.astype(mx.float32)
    best_two = mx.topk(x, 2, axis=-1)  # ascending
    log_sum = mx.logsumexp(x, axis=-1, keepdims=True)
    log_p = x - log_sum
    entropy = -mx.sum(mx.where(log_p > -1e30, mx.exp(log_p) * log_p, 0.0), axis=-1)
    best = mx.max(x, axis=-1)
    stats = [log_sum[:, 0], mx.exp(best - log_sum[:, 0]), best - mx.min(best_two, axis=-1), entropy]
    return mx.argmax(x, axis=-1), mx.stack(stats, axis=-1)


def keyed_choice(logits: mx.array, temperature: float, seed: int, position: int) -> mx.array:
    """The keyed token of every row of processed ``logits [R, V]``: uint32 [R]; row r is at ``position + r``."""
    x = logits.astype(mx.float32)
    if temperature > 0:
        x = x / temperature + keyed_gumbel(seed, position, *x.shape)
    return mx.argmax(x, axis=-1)


def accept_prefix(draft: mx.array, choice: mx.array, depth: int | mx.array, eos: mx.array) -> tuple[mx.array, mx.array]:
    """Committed tokens int32 [R] padded with -1, and (accepted, committed, next anchor, ended) int32 [4]."""
    rows = mx.arange(choice.size)
    length = min(draft.size, choice.size)
    right = (draft[:length] == choice[:length]) & (rows[:length] < depth)
    accepted = mx.sum(mx.cumprod(right.astype(mx.int32)))
    ends = mx.any((choice[:, None] == eos) & (eos >= 0), axis=-1) & (rows <= accepted)
    ending = mx.min(mx.where(ends, rows, choice.size))
    committed = mx.minimum(accepted, ending) + 1
    summary = [mx.minimum(accepted, committed), committed, choice[committed - 1], ending < choice.size]
    tokens = mx.where(rows < committed, choice, -1).astype(mx.int32)
    return tokens, mx.stack([s.astype(mx.int32) for s in summary])


def verify_qmm(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int,
    bits: int,
    mode: str = "affine",
) -> mx.array:
    """``x [M, K]`` times the dequantised ``w [N, K]``, transposed: ``[M, N]``."""
    return mx.quantized_matmul(x, w, scales, biases, transpose=True, group_size=group_size, bits=bits, mode=mode)


def verify_moe_qmm(
    x: mx.array,
    ids: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int,
    bits: int,
    mode: str = "affine",
) -> mx.array:
    """Routed experts: ``ids [R, k]``; x ``[R, K]`` shared by the slots, or ``[R, k, K]``: ``[R, k, N]``."""
    rows = x[:, None, None, :] if x.ndim == 2 else x[:, :, None, :]
    form: dict[str, Any] = {"group_size": group_size, "bits": bits, "mode": mode}
    return mx.gather_qmm(rows, w, scales, biases, rhs_indices=ids, transpose=True, **form).squeeze(-2)


def verify_attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, window: int = 0) -> mx.array:
    """Causal attention of ``q [1, H, M, D]`` over ``k, v [1, Hkv, L, D]``: ``[1, M, H, D]``; window 0: all keys."""
    mask: str | mx.array = "causal"
    if window:
        key, position = mx.arange(k.shape[2])[None], mx.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None]
        mask = (key <= position) & (key > position - window)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask).swapaxes(1, 2)


def verify_attention_quantised(
    q: mx.array, k: Packed, v: Packed, *, scale: float, group_size: int, bits: int
) -> mx.array:
    """Causal attention of ``q [1, H, M, D]`` over packed keys and values: ``[1, M, H, D]``, as mlx-lm computes it."""
    form: dict[str, Any] = {"group_size": group_size, "bits": bits}
    out: mx.array = quantized_scaled_dot_product_attention(
        copy.copy(q),
        k,
        v,
        scale=scale,
        mask="causal",
        **form,  # it scales its queries in place
    )
    return out.swapaxes(1, 2)


def recurrent_replay(k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, accepted: int) -> mx.array:
    """GatedDeltaNet state after ``accepted`` rows; shapes in ``recurrent_replay.metal``."""
    if accepted == 0:
        return state
    k, v, g, beta = (a[:, :accepted] for a in (k, v, g, beta))
    fused = mx.default_device() == mx.gpu and mx.metal.is_available() and k.shape[-1] % 32 == 0
    new: mx.array = (gated_delta_kernel if fused else gated_delta_ops)(mx.zeros_like(k), k, v, g, beta, state)[1]
    return new
