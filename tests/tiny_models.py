"""Tiny random models of the real mlx-lm classes, float32, at most 0.3 MB, made in milliseconds.

``model, config = tiny_model("qwen3", seed=1)``. Keyword arguments override fields of the configuration, for example
``vocab_size=64`` or ``num_hidden_layers=4``.
"""

from __future__ import annotations

import importlib
from typing import Any

import macspec_models  # noqa: F401  (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

VOCAB = 128

_DENSE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "norm_topk_prob": True}
_QWEN_MOE: dict[str, Any] = {**_EXPERTS, "num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": []}
_GROUPED: dict[str, Any] = {
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.5,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.5,
}
_LATENT: dict[str, Any] = {
    **_DENSE,
    **_GROUPED,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}

#: Family to configuration; ``module`` names the file in ``mlx_lm.models`` when it differs from the family.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _DENSE,
    "mistral": {**_DENSE, "module": "llama"},
    "ministral3": {
        **_DENSE,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 12,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": _DENSE,
    "qwen3": {**_DENSE, "head_dim": 16},
    "qwen3_moe": {**_DENSE, **_QWEN_MOE, "head_dim": 16, "num_hidden_layers": 2},
    "qwen3_next": {**_DENSE, **_QWEN_MOE, **_LINEAR, "shared_expert_intermediate_size": 16},
    "qwen3_5": {**_DENSE, **_LINEAR},
    "qwen3_5_moe": {
        **_DENSE,
        **_LINEAR,
        **_EXPERTS,
        "num_experts": 4,
        "shared_expert_intermediate_size": 16,
    },
    "gemma3_text": {
        **_DENSE,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 12,
        "sliding_window_pattern": 3,
    },
    "gemma4_text": {
        **_DENSE,
        "num_hidden_layers": 6,
        "intermediate_size": 32,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 4,
        "sliding_window": 12,
        "sliding_window_pattern": 3,
        "use_double_wide_mlp": True,
    },
    "gpt_oss": {
        **_DENSE,
        "intermediate_size": 24,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "phi3": _DENSE,
    "olmo2": _DENSE,
    "olmo3": {**_DENSE, "num_hidden_layers": 4, "sliding_window": 12},
    "glm4": {**_DENSE, "attention_bias": True, "head_dim": 8, "partial_rotary_factor": 0.5},
    "glm4_moe": {
        **_DENSE,
        **_GROUPED,
        "head_dim": 8,
        "rope_scaling": None,
        "use_qk_norm": True,
        "attention_bias": False,
        "partial_rotary_factor": 0.5,
    },
    "lfm2": {
        **_DENSE,
        "norm_eps": 1e-5,
        "conv_bias": True,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "lfm2_moe": {
        **_DENSE,
        **_EXPERTS,
        "num_experts": 4,
        "num_dense_layers": 1,
        "use_expert_bias": True,
        "norm_eps": 1e-5,
        "conv_bias": True,
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "nemotron_h": {
        **_DENSE,
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 8,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "head_dim": 8,
        "hybrid_override_pattern": ["M", "-", "*", "M", "-"],
    },
    "deepseek_v3": _LATENT,
    "deepseek_v32": {**_LATENT, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 24, "num_hidden_layers": 2},
    "falcon_h1": {
        **_DENSE,
        "num_hidden_layers": 2,
        "head_dim": 8,
        "mamba_d_head": 8,
        "mamba_d_ssm": 32,
        "mamba_d_state": 8,
        "mamba_n_heads": 4,
        "lm_head_multiplier": 1.0,
    },
    "granitemoehybrid": {
        **_DENSE,
        "attention_bias": False,
        "embedding_multiplier": 2.0,
        "attention_multiplier": 0.35,
        "logits_scaling": 0.5,
        "residual_multiplier": 0.8,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 16,
        "intermediate_size": 16,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_proj_bias": False,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_n_groups": 2,
        "mamba_conv_bias": True,
    },
    "llama4": {
        "text_config": {
            **_DENSE,
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "attention_bias": False,
            "attention_chunk_size": 12,
            "head_dim": 8,
            "interleave_moe_layer_step": 4,
            "intermediate_size": 16,
            "intermediate_size_mlp": 24,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        }
    },
    "recurrent_gemma": {
        **_DENSE,
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 12,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "mamba": {
        **_DENSE,
        "num_hidden_layers": 2,
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": "auto",
    },
    "mamba2": {
        **_DENSE,
        "num_heads": 4,
        "head_dim": 8,
        "state_size": 8,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.0, float("inf")],
        "time_step_rank": "auto",
    },
    "jamba": {
        **_DENSE,
        "attn_layer_offset": 1,
        "attn_layer_period": 3,
        "expert_layer_offset": 2,
        "expert_layer_period": 3,
        "mamba_d_conv": 4,
        "mamba_d_state": 8,
        "mamba_expand": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "kimi_linear": {
        **_DENSE,
        **_EXPERTS,
        "head_dim": 8,
        "linear_attn_config": {
            "num_heads": 4,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
            "kda_layers": [1, 3],
            "full_attn_layers": [2],
        },
        "model_max_length": 4096,
        "num_experts": 4,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    },
    "rwkv7": {
        **_DENSE,
        "norm_eps": 1e-5,
        "head_dim": 8,
        "a_low_rank_dim": 4,
        "v_low_rank_dim": 4,
        "gate_low_rank_dim": 4,
        "decay_low_rank_dim": 4,
    },
}


def tiny_model(family: str, seed: int = 0, **overrides: Any) -> tuple[Any, dict[str, Any]]:
    """A random model of ``family`` and the configuration it was made from. Same arguments, same weights."""
    config = {"model_type": family, **FAMILIES[family], **overrides}
    module = importlib.import_module(f"mlx_lm.models.{config.pop('module', family)}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(tree_unflatten([(name, _weights(name, array, seed)) for name, array in parameters(model)]))
    model.eval()
    mx.eval(model.parameters())
    return model, config


def parameters(model: Any) -> list[tuple[str, mx.array]]:
    """Every parameter with its dotted name."""
    return tree_flatten(model.parameters())  # type: ignore[no-any-return]


def _weights(name: str, array: mx.array, seed: int) -> mx.array:
    """Random weights that depend on the seed and the name only, so adding a parameter changes no other."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    random = np.random.default_rng([seed, *name.encode()])
    noise = random.standard_normal(array.shape).astype(np.float32)
    if array.ndim >= 2:
        return mx.array(noise / np.sqrt(array.shape[-1]))
    # Norms, biases, decays: near the initial value, but not equal to it.
    return mx.array(np.array(array.astype(mx.float32)) + 0.1 * noise)
