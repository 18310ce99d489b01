"""How much memory a model and a context will take, before they take it.

Sums, not measurements: weights, drafter, KV cache at a context, and the activations of one prefill chunk. The KV part
comes from caches that have seen at least one token (`CacheCost.of`), or from a configuration before anything is loaded
(`CacheCost.from_config`), which counts recurrent states as full attention and so errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from macspec.engine.caches import TargetCache

#: Rows mlx-lm's caches grow by.
STEP = 256


@dataclass(frozen=True)
class CacheCost:
    """Bytes of the target's caches as a function of the positions they hold."""

    per_position: int
    #: Per window: bytes of a row, and the most rows kept.
    windows: tuple[tuple[int, int], ...] = ()
    fixed: int = 0

    @classmethod
    def of(cls, cache: TargetCache) -> CacheCost:
        """Measured on caches that hold at least one position."""
        per_position, windows, fixed = 0, [], 0
        for rows, most, nbytes in cache.row_costs():
            if rows == 0:
                fixed += nbytes
            elif most is None:
                per_position += nbytes // rows
            else:
                windows.append((nbytes // rows, most))
        return cls(per_position, tuple(windows), fixed)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], bytes_per_value: float = 2.0) -> CacheCost:
        """From a model's ``config.json``; ``bytes_per_value`` is below 2 for a quantised cache."""
        text = config.get("text_config", config)
        layers = int(text.get("num_hidden_layers") or text.get("n_layers") or 0)
        if rank := text.get("kv_lora_rank"):
            row = int((int(rank) + int(text.get("qk_rope_head_dim") or 0)) * bytes_per_value)
            return cls(layers * row)
        heads = int(text.get("num_attention_heads") or 1)
        dim = int(text.get("head_dim") or int(text.get("hidden_size") or 0) // heads)
        row = int(2 * int(text.get("num_key_value_heads") or heads) * dim * bytes_per_value)
        window = text.get("sliding_window")
        kinds = text.get("layer_types") or []
        sliding = sum(kind == "sliding_attention" for kind in kinds) if window else 0
        return cls((layers - sliding) * row, ((row, int(window)),) * sliding if window else ())

    def nbytes(self, context: int) -> int:
        """Bytes at ``context`` positions; a buffer that grew in the middle of a step has up to a step of spare rows."""
        rows = context + STEP if context else 0
        return self.per_position * rows + sum(row * min(rows, most) for row, most in self.windows) + self.fixed


def prefill_bytes(config: Mapping[str, Any], chunk: int, context: int, bytes_per_value: int, fused: bool) -> int:
    """Activations alive at once while one chunk of a prompt is read, without the caches.

    Two feed-forward intermediates and a few hidden-sized arrays per row. Attention that is not one fused kernel (on the
    CPU, and on Metal for head sizes other than 64, 80 and 128) also holds the scores of one layer: on the CPU the peak
    grows by 1.1 times their size (measured with the embedded model, chunks of 512 up to 8192 positions).
    """
    text = config.get("text_config", config)
    hidden = int(text.get("hidden_size") or 0)
    wide = int(text.get("intermediate_size") or 4 * hidden)
    heads = int(text.get("num_attention_heads") or 1)
    row = (3 * wide + 8 * hidden) * bytes_per_value
    scores = 0 if fused else 11 * heads * min(chunk, context) * context * bytes_per_value // 10
    return min(chunk, context) * row + scores


@dataclass(frozen=True)
class Forecast:
    """Bytes that a loaded pair needs at ``context`` positions, against what there is."""

    weights: int
    drafter: int
    cache: int
    activations: int
    limit: int
    context: int
    source: str = "the memory limit"

    @property
    def total(self) -> int:
        """Everything at once."""
        return self.weights + self.drafter + self.cache + self.activations

    @property
    def fits(self) -> bool:
        """Whether it stays under the limit."""
        return self.total <= self.limit

    def sentence(self) -> str:
        """What takes how much, and the limit."""
        drafter = f", {size(self.drafter)} for the drafter" if self.drafter else ""
        return (
            f"{size(self.total)} in all: {size(self.weights)} for the weights{drafter}, {size(self.cache)} for the KV "
            f"cache of {self.context:,} tokens, {size(self.activations)} for reading the prompt; {self.source} is "
            f"{size(self.limit)}"
        )


def size(nbytes: int) -> str:
    """Bytes for people, in powers of 1000 as macOS counts."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
