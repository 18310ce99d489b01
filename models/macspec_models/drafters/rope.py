"""Rotary embeddings of published drafter configs: plain, linear, Llama 3 and YaRN scaling, partial rotation.

Frequencies are computed once in double precision. The formulas are those of the configs' own library (Hugging Face
``modeling_rope_utils``), because that is what the checkpoints were trained with.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

#: ``rope_type`` values understood here; ``mrope`` is plain rotation for text.
SUPPORTED = ("default", "mrope", "linear", "llama3", "yarn")


def rope_kind(scaling: dict[str, Any] | None) -> str:
    """The ``rope_type`` of a ``rope_scaling`` or ``rope_parameters`` object."""
    if not scaling:
        return "default"
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def wavelengths(dims: int, base: float, scaling: dict[str, Any] | None, max_position: int) -> NDArray[np.float64]:
    """Inverse frequencies ``[dims / 2]``: position ``p`` turns pair ``i`` by ``p / wavelengths[i]`` radians."""
    plain: NDArray[np.float64] = base ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    kind = rope_kind(scaling)
    if kind in ("default", "mrope") or scaling is None:
        return plain
    factor = float(scaling["factor"])
    if kind == "linear":
        return plain * factor
    original = float(scaling.get("original_max_position_embeddings") or max_position)
    if kind == "llama3":
        low, high = float(scaling.get("low_freq_factor", 1.0)), float(scaling.get("high_freq_factor", 4.0))
        turns = original / (2 * math.pi * plain)
        smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
        blended: NDArray[np.float64] = 1.0 / ((1 - smooth) / (factor * plain) + smooth / plain)
        return blended
    if kind == "yarn":
        fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)

        def dimension(turns: float) -> float:
            return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = dimension(fast), dimension(slow)
        if scaling.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        ramp = np.clip((np.arange(dims // 2) - first) / (last - first if last != first else 0.001), 0.0, 1.0)
        mixed: NDArray[np.float64] = 1.0 / (ramp / (factor * plain) + (1 - ramp) / plain)
        return mixed
    raise ValueError(f"rope_type {kind!r} is not one of {', '.join(SUPPORTED)}")


def magnitude(scaling: dict[str, Any] | None) -> float:
    """What rotated queries and keys are multiplied by: 1 but for YaRN (its attention factor)."""
    if rope_kind(scaling) != "yarn" or scaling is None:
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor = float(scaling["factor"])

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(float(scaling["mscale"])) / scale(float(scaling["mscale_all_dim"]))
    return scale(1.0)


class Rotary(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """Rotates the first ``dims`` channels of ``[B, heads, n, head_dim]`` in half-split pairs; the rest pass through."""

    def __init__(self, dims: int, base: float, scaling: dict[str, Any] | None, max_position: int) -> None:
        super().__init__()
        self.dims, self.base = dims, base
        self._magnitude = magnitude(scaling)
        # Plain rotation stays with the kernel's own frequencies: one table less to read.
        plain = rope_kind(scaling) in ("default", "mrope")
        self._periods = None if plain else mx.array(wavelengths(dims, base, scaling, max_position), dtype=mx.float32)

    def __call__(self, x: mx.array, offset: int | mx.array) -> mx.array:
        if self._magnitude != 1.0:
            turned = x[..., : self.dims] * self._magnitude
            x = turned if self.dims == x.shape[-1] else mx.concatenate([turned, x[..., self.dims :]], axis=-1)
        base = self.base if self._periods is None else None
        return mx.fast.rope(x, self.dims, traditional=False, base=base, scale=1.0, offset=offset, freqs=self._periods)
