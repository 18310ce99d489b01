"""DFlash (v1): the block-diffusion drafter of arXiv 2602.06036, in the published checkpoint layout.

The module tree carries the published tensor names (``fc``, ``hidden_norm``, ``layers.N.self_attn.q_proj`` ...), so a
checkpoint loads without renaming. The network owns no embedding and no head: the target's are used (paper section 4).

Shapes: ``B`` batch, ``N`` context positions, ``S`` block slots, ``D`` drafter width, ``T`` number of taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import initialize_rope

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


class Attention(nn.Module):
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
        self.rope = initialize_rope(
            dim,
            config.rope_theta,
            False,
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

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
        """``[B, heads, S, head_dim]`` queries over all keys, projected back to ``[B, S, D]``."""
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)
        return self.o_proj(out.swapaxes(1, 2).reshape(out.shape[0], out.shape[2], -1))


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm drafter layer."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class DFlashNetwork(nn.Module):
    """The trainable part of a DFlash drafter."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        taps = len(config.target_layer_ids)
        self.fc = nn.Linear(taps * config.target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def fuse(self, features: mx.array) -> mx.array:
        """Fuse concatenated taps ``[B, N, T * target width]`` into context states ``[B, N, D]`` (paper appendix A.3)."""
        return self.hidden_norm(self.fc(features))

    def context(self, features: mx.array, offset: int | mx.array) -> list[KeyValue]:
        """Keys and values every layer keeps for context positions ``offset ...``; computed once per position."""
        fused = self.fuse(features)
        return [layer.self_attn.key_value(fused, offset) for layer in self.layers]

    def __call__(
        self,
        block: mx.array,
        offset: int | mx.array,
        context: Sequence[KeyValue],
        masks: Sequence[mx.array | None],
    ) -> mx.array:
        """Denoise a block in one pass.

        Args:
            block: embedded block ``[B, S, D]``: the anchor, then mask tokens.
            offset: absolute position of the anchor.
            context: per layer, keys and values of the committed positions before the anchor.
            masks: per layer, boolean ``[..., S, N + S]`` (True = may attend), or None when everything may.

        Returns:
            Normalised hidden states ``[B, S, D]`` for the target's head.
        """
        x = block
        for layer, (keys, values), mask in zip(self.layers, context, masks, strict=True):
            normed = layer.input_layernorm(x)
            queries = layer.self_attn.query(normed, offset)
            block_keys, block_values = layer.self_attn.key_value(normed, offset)
            keys = mx.concatenate([keys, block_keys], axis=2)
            values = mx.concatenate([values, block_values], axis=2)
            x = x + layer.self_attn.attend(queries, keys, values, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)
