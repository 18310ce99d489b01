"""Tiny random models of the real mlx-lm classes, float32, at most 0.3 MB, made in milliseconds.

``model, config = tiny_model("qwen3", seed=1)``. Keyword arguments override fields of the configuration, for example
``vocab_size=64`` or ``num_hidden_layers=4``.
"""

from __future__ import annotations

import importlib
from typing import Any

import macspec  # noqa: F401  (loads a fast BLAS before MLX)
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

#: Family to configuration; ``module`` names the file in ``mlx_lm.models`` when it differs from the family.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _DENSE,
    "qwen2": _DENSE,
    "qwen3": {**_DENSE, "head_dim": 16},
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
        return mx.array(noise / np.sqrt(array.shape[-1]) * 1.5)
    # Norms, biases, decays: near the initial value, but not equal to it.
    return mx.array(np.array(array.astype(mx.float32)) + 0.1 * noise)
