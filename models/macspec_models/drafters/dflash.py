"""DFlash (v1): the block-diffusion drafter of arXiv 2602.06036, in the published checkpoint layout.

The module tree carries the published tensor names (``fc``, ``hidden_norm``, ``layers.N.self_attn.q_proj`` ...), so a
checkpoint loads without renaming. The network owns no embedding and no head: the target's are used (paper section 4).

Shapes: ``B`` batch, ``N`` context positions, ``S`` block slots, ``D`` drafter width, ``T`` number of taps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from macspec_models.drafters.context import BlockContext, LayerBuffer
from macspec_models.drafters.rope import Rotary

#: Keys and values of one layer's context, each ``[B, kv_heads, N, head_dim]``, rotated to absolute positions.
KeyValue = tuple[mx.array, mx.array]


@dataclass(frozen=True)
class DFlashConfig:
    """Everything the network needs from ``config.json``; see ``macspec_models.checkpoints`` for the parsing rules."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    target_hidden_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int = 32_768
    attention_bias: bool = False
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    is_causal: bool | None = None
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0
    sample_from_anchor: bool = False
    partial_rotary_factor: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)

    def window(self, layer: int) -> int | None:
        """Context window of a layer in positions, or None for full attention."""
        if self.layer_types and self.layer_types[layer] == "sliding_attention":
            return self.sliding_window
        return None

    def causal(self, layer: int) -> bool:
        """Whether block slots of this layer see only earlier slots.

        The authors' code defaults sliding layers to causal and full layers to bidirectional when the flag is absent.
        """
        if self.is_causal is not None:
            return self.is_causal
        return self.window(layer) is not None

    @property
    def max_depth(self) -> int:
        """Draft tokens a block yields: every slot but the anchor's, unless the anchor slot predicts too."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1


def dtype_of(layer: Any) -> mx.Dtype:
    """The type a linear layer computes in; a quantised one computes in its scales' type."""
    dtype: mx.Dtype = layer.scales.dtype if "scales" in layer else layer.weight.dtype
    return dtype


def widen(x: mx.array) -> mx.array:
    """Float16 to float32, whose products then cannot overflow; other types have float32's range already."""
    return x.astype(mx.float32) if x.dtype == mx.float16 else x


def project(layer: Any, x: mx.array) -> mx.array:
    """``layer(x)`` for an ``x`` whose values may exceed float16.

    A float16 layer gets rows scaled to at most 1 and the result is scaled back in float32. Machines without bfloat16
    arithmetic run float16 drafters, whose residual stream and tapped features overflow otherwise.
    """
    dtype = dtype_of(layer)
    if dtype != mx.float16:
        return cast(mx.array, layer(x.astype(dtype)))
    wide = x.astype(mx.float32)
    scale = mx.maximum(mx.max(mx.abs(wide), axis=-1, keepdims=True), 1e-12)
    return cast(mx.array, layer((wide / scale).astype(dtype))).astype(mx.float32) * scale


class Attention(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """Attention whose keys and values are the context's, projected from features, followed by the block's own."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        width, heads, kv_heads, dim = (
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.scale = dim**-0.5
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, heads * dim, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(heads * dim, width, bias=bias)
        self.q_norm = nn.RMSNorm(dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dim, config.rms_norm_eps)
        self.rope = Rotary(
            int(dim * config.partial_rotary_factor),
            config.rope_theta,
            config.rope_scaling,
            config.max_position_embeddings,
        )

    def key_value(self, x: mx.array, offset: int | mx.array) -> KeyValue:
        """Project ``x [B, N, D]`` at positions ``offset, offset + 1, ...`` to rotated keys and values."""
        batch, length, _ = x.shape
        keys = self.k_norm(self.k_proj(x).reshape(batch, length, self.kv_heads, self.dim)).swapaxes(1, 2)
        values = self.v_proj(x).reshape(batch, length, self.kv_heads, self.dim).swapaxes(1, 2)
        return self.rope(keys, offset=offset), values

    def query(self, x: mx.array, offset: int | mx.array) -> mx.array:
        """Project ``x [B, S, D]`` to rotated queries ``[B, heads, S, head_dim]``."""
        batch, length, _ = x.shape
        queries = self.q_norm(self.q_proj(x).reshape(batch, length, self.heads, self.dim)).swapaxes(1, 2)
        return self.rope(queries, offset=offset)

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str | None) -> mx.array:
        """``[B, heads, S, head_dim]`` queries over all keys, projected back to ``[B, S, D]``."""
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)
        return project(self.o_proj, out.swapaxes(1, 2).reshape(out.shape[0], out.shape[2], -1))

    def block(self, x: mx.array, offset: int, buffer: LayerBuffer, mask: mx.array | str | None) -> mx.array:
        """Block slots ``x [1, S, D]`` from position ``offset`` over the buffer's context and themselves."""
        keys, values = buffer.with_block(*self.key_value(x, offset))
        return self.attend(self.query(x, offset), keys, values, mask)


class MLP(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """SwiGLU feed-forward."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return project(self.down_proj, widen(nn.silu(self.gate_proj(x))) * self.up_proj(x))


class Layer(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """One pre-norm drafter layer."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def block(self, x: mx.array, offset: int, buffer: LayerBuffer, mask: mx.array | str | None) -> mx.array:
        """One block's float32 residual stream ``[1, S, D]`` through the layer."""
        dtype = dtype_of(self.self_attn.q_proj)
        x = x + self.self_attn.block(self.input_layernorm(x).astype(dtype), offset, buffer, mask)
        return x + self.mlp(self.post_attention_layernorm(x).astype(dtype))


class DFlashNetwork(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """The trainable part of a DFlash drafter."""

    layer_class: type[Layer] = Layer

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        taps = len(config.target_layer_ids)
        self.fc = nn.Linear(taps * config.target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = [self.layer_class(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def fuse(self, features: mx.array) -> mx.array:
        """Fuse concatenated taps ``[B, N, T * target width]`` to context states ``[B, N, D]`` (paper appendix A.3)."""
        return cast(mx.array, self.hidden_norm(project(self.fc, features))).astype(dtype_of(self.fc))

    def context(self, features: mx.array, offset: int | mx.array) -> list[KeyValue]:
        """Keys and values every layer keeps for context positions ``offset ...``; computed once per position."""
        fused = self.fuse(features)
        return [layer.self_attn.key_value(fused, offset) for layer in self.layers]

    def __call__(self, block: mx.array, context: BlockContext) -> mx.array:
        """Denoise a block in one pass.

        Args:
            block: embedded block ``[1, S, D]``: the anchor, then mask tokens.
            context: the committed positions before the anchor; nothing is added to it.

        Returns:
            Normalised hidden states ``[1, S, D]`` for the target's head.
        """
        # The residual stream is float32: half precision overflows in it on some drafters, and S rows cost nothing.
        x, offset = block.astype(mx.float32), context.length
        masks: dict[tuple[int, int | None, bool], mx.array | str | None] = {}
        for number, (layer, buffer) in enumerate(zip(self.layers, context.layers, strict=True)):
            shape = (buffer.visible(), buffer.window, self.config.causal(number))
            if shape not in masks:
                masks[shape] = block_mask(block.shape[1], *shape)
            x = layer.block(x, offset, buffer, masks[shape])
        return cast(mx.array, self.norm(x)).astype(dtype_of(self.fc))


def block_mask(slots: int, visible: int, window: int | None, causal: bool) -> mx.array | str | None:
    """Which of ``visible`` context rows and ``slots`` block rows each slot attends to, in the form attention takes.

    A sliding layer's slot sees the context rows less than ``window`` positions back, and the block as any other does.
    """
    if window is None or visible + slots <= window:
        return "causal" if causal else None
    distance = (visible + mx.arange(slots))[:, None] - mx.arange(visible + slots)[None]
    mask = (distance < window) | (mx.arange(visible + slots)[None] >= visible)
    return mask & (distance >= 0) if causal else mask
