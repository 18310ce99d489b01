"""Draft rounds at every position of known answers, without decoding anything.

An answer the target gave is what it would give again, so a draft at position ``p`` is accepted exactly as far as it
agrees with the tokens that follow. One forward pass over the answer and one pass per few drafts replace its rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.confidence import confidence
from macspec_models.target import Target
from macspec_models.training.drafter import denoise
from macspec_models.training.predictor import FeatureMap

Floats = NDArray[np.float32]
#: Drafts made in one pass: a few read the weights once, many make logits that do not fit caches.
TOGETHER = 16


@dataclass(frozen=True)
class RecordedRound:
    """One draft. ``confidence [k, 3]`` as in ``DraftBlock``; ``features`` is empty unless a map was given."""

    text: int
    category: str
    #: Tokens of the answer before the anchor's successor, and tokens in the caches.
    position: int
    context: int
    confidence: Floats
    accepted: int
    features: Floats
    temperature: float = 0.0
    held_out: bool = False


@dataclass(frozen=True)
class Known:
    """An answer as token ids, the prompt's first."""

    text: int
    category: str
    tokens: Sequence[int] | NDArray[np.integer[Any]]
    prompt_length: int
    #: It was sampled at; a draft agrees as often as it would have been accepted then.
    temperature: float = 0.0
    #: Nothing is trained on it.
    held_out: bool = False


def record(
    target: Target, drafter: DFlashDrafter, answer: Known, *, stride: int = 1, features: FeatureMap | None = None
) -> Iterator[RecordedRound]:
    """Drafts of one answer in text order; only positions where a whole block could still be accepted.

    Args:
        stride: draft at every ``stride``-th position, counted from the last.
        features: also compute a length predictor's inputs.
    """
    tokens = np.asarray(answer.tokens, np.int32)
    depth = drafter.max_depth
    anchors = np.sort(np.arange(len(tokens) - 1 - depth, answer.prompt_length - 2, -stride))
    target.set_taps(drafter.taps)
    target.forward(mx.array(tokens[None]), target.make_cache())
    taps = target.features()
    assert taps is not None
    taps = taps[: len(tokens) - depth]
    for begin in range(0, len(anchors), TOGETHER):
        places = anchors[begin : begin + TOGETHER]
        hidden = _hidden(drafter, taps, tokens, places)
        scores = drafter.scores(hidden)
        flat = scores.reshape(-1, scores.shape[-1])
        rows = mx.argmax(flat, axis=-1).astype(mx.int32)
        proposed = drafter.head.tokens(rows).reshape(len(places), depth)
        sure = confidence(flat, rows).reshape(len(places), depth, 3)
        inputs = mx.zeros((len(places), 0)) if features is None else features(hidden, scores)
        mx.eval(proposed, sure, inputs)
        agree = np.asarray(proposed) == tokens[places[:, None] + np.arange(1, depth + 1)]
        accepted = np.logical_and.accumulate(agree, axis=1).sum(axis=1)
        sure_rows, input_rows = np.asarray(sure, np.float32), np.asarray(inputs, np.float32)
        for number, place in enumerate(places.tolist()):
            yield RecordedRound(
                text=answer.text,
                category=answer.category,
                position=place + 1 - answer.prompt_length,
                context=place,
                confidence=sure_rows[number],
                accepted=int(accepted[number]),
                features=input_rows[number],
                temperature=answer.temperature,
                held_out=answer.held_out,
            )


def _hidden(drafter: DFlashDrafter, taps: mx.array, tokens: NDArray[np.int32], anchors: NDArray[np.int_]) -> mx.array:
    """Hidden states ``[anchors, depth, D]`` of whole blocks drafted at these positions of a text."""
    config, depth = drafter.config, drafter.max_depth
    blocks = np.full((len(anchors), config.block_size), config.mask_token_id, np.int32)
    blocks[:, 0] = tokens[anchors]
    embedded = drafter.embed(mx.array(blocks)).astype(mx.float32) * config.input_embedding_scale
    visible = mx.arange(taps.shape[0])[None] < mx.array(anchors)[:, None]
    return denoise(drafter.network, taps[None], embedded, mx.array(anchors), visible[None])[:, -depth:]
