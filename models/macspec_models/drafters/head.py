"""The head a drafter scores with: the target's, or a gathered subset of its rows.

A drafter that scores only frequent tokens drafts faster and never proposes the others. That can change acceptance but
not text: the target still chooses among the whole vocabulary.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from macspec_models.drafters.interface import Head


class DraftHead:
    """Scores hidden states over ``rows`` of the vocabulary, or over all of it when ``rows`` is None.

    Args:
        score: ``[..., width]`` to logits ``[..., head rows]``.
        rows: token id of each head row, ``[head rows]``; None when row ``i`` is token ``i``.
        nbytes: device bytes this head holds beyond the target's own.
    """

    def __init__(self, score: Head, rows: NDArray[np.integer[Any]] | None = None, nbytes: int = 0) -> None:
        self._score, self.nbytes = score, nbytes
        self.rows = None if rows is None else mx.array(np.asarray(rows, np.int32))

    def __call__(self, hidden: mx.array) -> mx.array:
        return self._score(hidden)

    def tokens(self, rows: mx.array) -> mx.array:
        """Token ids of head row numbers, int32."""
        return rows if self.rows is None else self.rows[rows]

    def columns(self, values: mx.array | None) -> mx.array | None:
        """Per-token values ``[k, vocab]`` for this head's rows only."""
        return values if values is None or self.rows is None else values[:, self.rows]


def head_layer(model: Any) -> Any:
    """The layer of an mlx-lm model that makes logits: ``lm_head`` or the tied embedding; None if it has neither."""
    for owner in (model, getattr(model, "language_model", None)):
        if owner is None:
            continue
        if getattr(owner, "lm_head", None) is not None:
            return owner.lm_head
        embedding = getattr(getattr(owner, "model", None), "embed_tokens", None)
        if embedding is not None:
            return embedding
    return None


def gather_head(layer: Any, rows: NDArray[np.integer[Any]]) -> DraftHead:
    """A head of some rows of a linear, tied-embedding or quantised layer, gathered once.

    Quantisation groups run along a row, so gathered rows score exactly as they do in the whole head.

    Raises:
        ValueError: ``rows`` is empty, repeats a token, or names one the head has not.
    """
    picked = np.asarray(rows, np.int64)
    size = int(layer.weight.shape[0])
    if picked.ndim != 1 or not len(picked) or len(np.unique(picked)) != len(picked):
        raise ValueError("head rows must be a non-empty list of distinct token ids")
    if picked.min() < 0 or picked.max() >= size:
        raise ValueError(f"head rows must lie in 0..{size - 1}")
    index = mx.array(picked)
    parts = {name: layer[name][index] for name in ("weight", "scales", "biases", "bias") if name in layer}
    mx.eval(*parts.values())
    if "scales" in parts:
        group, bits, mode = layer.group_size, layer.bits, getattr(layer, "mode", "affine")

        def score(hidden: mx.array) -> mx.array:
            out = mx.quantized_matmul(
                hidden,
                parts["weight"],
                scales=parts["scales"],
                biases=parts.get("biases"),
                transpose=True,
                group_size=group,
                bits=bits,
                mode=mode,
            )
            return out if "bias" not in parts else out + parts["bias"]
    else:
        linear = nn.Linear(1, 1, bias=False)
        linear.weight = parts["weight"]
        if "bias" in parts:
            linear.bias = parts["bias"]
        score = linear
    return DraftHead(score, picked, sum(part.nbytes for part in parts.values()))
