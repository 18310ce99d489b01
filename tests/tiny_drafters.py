"""Random drafter checkpoints in the published layouts, and a stand-in for the target they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import macspec_models  # noqa: F401  (loads the fast BLAS before MLX)

#: What ``write_dflash`` needs to know of a target; a target's own ``config.json`` will do as well.
TINY_TARGET = {"hidden_size": 32, "num_hidden_layers": 8, "vocab_size": 97}

_NESTED = {
    "mask_token_id",
    "target_layer_ids",
    "projector_type",
    "output_multiplier",
    "final_logit_softcapping",
    "input_embedding_scale",
    "sample_from_anchor",
    "attention_mode",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
    "confidence_temperatures",
    "emb_dim",
    "gru_hidden_dim",
    "pure_draft_prefix_len",
    "shift_label",
}

_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash": ("DFlashDraftModel", {}),
    "dflash2": (
        "DFlash2DraftModel",
        {"is_causal": False, "conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5},
    ),
    "dspark": (
        "DSparkDraftModel",
        {
            "projector_type": "dspark",
            "attention_mode": "gqa",
            "markov_rank": 6,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        },
    ),
    "domino": (
        "DominoDraftModel",
        {
            "projector_type": "domino",
            "emb_dim": 7,
            "gru_hidden_dim": 10,
            "pure_draft_prefix_len": 1,
            "shift_label": True,
        },
    ),
}


class TinyTarget:
    """Embedding and head of a target, without the layers between: all that drafters ask of it."""

    def __init__(self, config: Mapping[str, Any] = TINY_TARGET, *, seed: int = 5, dtype: mx.Dtype = mx.float32) -> None:
        random = np.random.default_rng(seed)
        self.name, self.revision = "tiny", ""
        self.config = dict(config)
        self.hidden_size, self.layers = config["hidden_size"], config["num_hidden_layers"]
        self.vocab_size, self.dtype = config["vocab_size"], dtype
        self.table = random.normal(size=(self.vocab_size, self.hidden_size)).astype(np.float32)
        self.rows = random.normal(size=(self.vocab_size, self.hidden_size)).astype(np.float32) * 0.3
        embedding, head = nn.Embedding(1, 1), nn.Linear(1, 1, bias=False)
        embedding.weight, head.weight = mx.array(self.table, dtype=dtype), mx.array(self.rows, dtype=dtype)
        self.model = SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding))
        self.embed, self.head = embedding, head

    def layer_outputs(self, positions: int, *, seed: int = 9) -> np.ndarray:
        """Made-up outputs of every decoder layer, ``[layers, positions, width]``, each layer unlike the others."""
        random = np.random.default_rng(seed)
        return random.normal(size=(self.layers, positions, self.hidden_size)).astype(np.float32)


def drafter_config(target: Mapping[str, Any], *, kind: str = "dflash", **variants: Any) -> dict[str, Any]:
    """A published-style ``config.json``; ``variants`` override or add fields, None removes one."""
    width, layers = target["hidden_size"], target["num_hidden_layers"]
    architecture, own = _KINDS[kind]
    depth = variants.get("num_hidden_layers", 3)
    fields: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "qwen3",
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 2 * width,
        "vocab_size": target["vocab_size"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "block_size": 6,
        "num_target_layers": layers,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * depth,
        "dtype": "float32",
        "target_layer_ids": sorted({1, layers // 2, layers - 3}),
        "mask_token_id": target["vocab_size"] - 1,
        **own,
        **variants,
    }
    raw = {name: value for name, value in fields.items() if name not in _NESTED}
    raw["dflash_config"] = {name: fields[name] for name in fields if name in _NESTED and fields[name] is not None}
    return {name: value for name, value in raw.items() if value is not None or name == "rope_scaling"}


def drafter_shapes(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Published tensor names and shapes for a config."""
    nested, width, inner = raw["dflash_config"], raw["hidden_size"], raw["intermediate_size"]
    queries = raw["num_attention_heads"] * raw["head_dim"]
    keys = raw["num_key_value_heads"] * raw["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, len(nested["target_layer_ids"]) * width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    for layer in range(raw["num_hidden_layers"]):
        start = f"layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{start}{name}.weight"] = (width,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{start}self_attn.{name}_proj.weight"] = (rows, width)
            if raw.get("attention_bias"):
                shapes[f"{start}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{start}self_attn.o_proj.weight"] = (width, queries)
        if raw.get("attention_bias"):
            shapes[f"{start}self_attn.o_proj.bias"] = (width,)
        for name in ("q_norm", "k_norm"):
            shapes[f"{start}self_attn.{name}.weight"] = (raw["head_dim"],)
        for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            shapes[f"{start}mlp.{name}_proj.weight"] = shape
        if "conv_kernel_size" in nested:
            taps, groups = nested["conv_kernel_size"], width // nested["conv_group_size"]
            for name in ("attention_conv", "mlp_conv"):
                shapes[f"{start}{name}.base_kernel"] = (2, taps, width)
                shapes[f"{start}{name}.kernel_projection.weight"] = (2 * taps * groups, width)
    return shapes | _head_shapes(raw)


def _head_shapes(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    nested, width, vocab = raw["dflash_config"], raw["hidden_size"], raw["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    if "selector_rank" in nested:
        rank = nested["selector_rank"]
        shapes["candidate_selector.hidden_projection.weight"] = (rank, width)
        shapes["candidate_selector.predecessor_codebook"] = (vocab, rank)
        shapes["candidate_selector.successor_codebook"] = (vocab, rank)
    if nested.get("markov_rank"):
        rank, head = nested["markov_rank"], nested["markov_head_type"]
        shapes["markov_head.markov_w1.weight"] = (vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (vocab, rank)
        if head == "gated":
            shapes["markov_head.gate_proj.weight"] = (rank, width + rank)
            shapes["markov_head.gate_proj.bias"] = (rank,)
        if head == "rnn":
            shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + width)
            shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if nested.get("enable_confidence_head"):
        extra = nested["markov_rank"] if nested["confidence_head_with_markov"] else 0
        shapes["confidence_head.proj.weight"] = (1, width + extra)
        shapes["confidence_head.proj.bias"] = (1,)
    if "gru_hidden_dim" in nested:
        state, bottleneck = nested["gru_hidden_dim"], nested["emb_dim"]
        shapes["prefix_gru.weight_ih_l0"] = (3 * state, width)
        shapes["prefix_gru.weight_hh_l0"] = (3 * state, state)
        shapes["embed_proj.0.weight"] = (bottleneck, width + state)
        shapes["embed_proj.2.weight"] = (vocab, bottleneck)
    return shapes


def random_tensors(shapes: Mapping[str, tuple[int, ...]], *, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights of a size at which every part of a network matters to its output."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = random.normal(size=shape)
        if "norm" in name:
            values = 1 + 0.2 * values
        elif name.endswith("base_kernel"):
            # Published ones start as the identity: this tap 1, the one before 0.
            values = 0.3 * values
            values[:, 0] += 1
        elif len(shape) == 2 and "codebook" not in name and "markov_w1" not in name:
            values = values / np.sqrt(shape[1])
        elif len(shape) == 1:
            values = 0.3 * values
        tensors[name] = values.astype(np.float32)
    return tensors


def write_dflash(
    folder: Path,
    target_config: Mapping[str, Any] = TINY_TARGET,
    *,
    kind: str = "dflash",
    seed: int = 0,
    dtype: str = "float32",
    prefix: str = "",
    **variants: Any,
) -> dict[str, Any]:
    """Write a random drafter for a target in the published layout; returns its config.

    Args:
        target_config: ``hidden_size``, ``num_hidden_layers`` and ``vocab_size`` of the target.
        kind: ``dflash``, ``dflash2``, ``dspark`` or ``domino``.
        prefix: put before every tensor's name, as some trainers do.
        variants: config fields to override or add, wherever they belong; None removes one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    raw = drafter_config(target_config, kind=kind, **variants)
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    tensors = random_tensors(drafter_shapes(raw), seed=seed)
    arrays = {prefix + name: mx.array(values).astype(getattr(mx, dtype)) for name, values in tensors.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, {"format": "pt"})
    return raw
