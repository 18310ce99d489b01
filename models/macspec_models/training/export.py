"""Write a trained drafter in the published DFlash checkpoint layout."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from macspec_models.drafters.dflash import DFlashConfig, DFlashNetwork
from macspec_models.vocabulary import HASH_FIELD, vocabulary_hash


def published_config(config: DFlashConfig) -> dict[str, object]:
    """``config.json`` as the published checkpoints have it."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "max_position_embeddings": config.max_position_embeddings,
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "tie_word_embeddings": True,
        "attention_bias": config.attention_bias,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "dflash_config": {
            "target_layer_ids": list(config.target_layer_ids),
            "mask_token_id": config.mask_token_id,
            **_dspark_fields(config),
        },
    }


def _dspark_fields(config: DFlashConfig) -> dict[str, object]:
    """What a DSpark drafter's config adds; nothing for DFlash."""
    if "markov_rank" not in config.extra:
        return {}
    own = {name: value for name, value in config.extra.items() if name != "confidence_bias"}
    own["confidence_temperatures"] = list(own["confidence_temperatures"])
    return {"projector_type": "dspark", "sample_from_anchor": config.sample_from_anchor, **own}


def export_drafter(network: DFlashNetwork, folder: Path, vocabulary: Mapping[str, int] | None = None) -> None:
    """Write ``config.json`` and bfloat16 ``model.safetensors``; each replaces the old file whole.

    Args:
        vocabulary: the target's tokens, whose hash then tells a target with other tokens apart.
    """
    raw = published_config(network.config)
    if vocabulary is not None:
        raw[HASH_FIELD] = vocabulary_hash(vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.astype(mx.bfloat16) for name, value in tree_flatten(network.parameters())}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as work:
        tensors = Path(work) / "model.safetensors"
        mx.save_safetensors(str(tensors), weights, metadata={"format": "pt"})
        config = Path(work) / "config.json"
        config.write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        os.replace(tensors, folder / tensors.name)
        os.replace(config, folder / config.name)
