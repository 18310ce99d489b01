"""Draft rounds at every position of known answers, without decoding anything.

An answer the target gave is what it would give again, so a draft at position ``p`` is accepted exactly as far as it
agrees with the tokens that follow. One forward pass over the answer and one draft per position replace a round each.
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
from macspec_models.training.predictor import FeatureMap

Floats = NDArray[np.float32]


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


@dataclass(frozen=True)
class Known:
    """An answer as token ids, the prompt's first."""

    text: int
    category: str
    tokens: Sequence[int] | NDArray[np.integer[Any]]
    prompt_length: int
    #: It was sampled at; a draft agrees as often as it would have been accepted then.
    temperature: float = 0.0


def record(
    target: Target, drafter: DFlashDrafter, answer: Known, *, stride: int = 1, features: FeatureMap | None = None
) -> Iterator[RecordedRound]:
    """Drafts of one answer, last position first; only positions where a whole block could still be accepted.

    Args:
        stride: draft at every ``stride``-th position.
        features: also compute a length predictor's inputs.
    """
    tokens = [int(token) for token in answer.tokens]
    depth = drafter.max_depth
    target.set_taps(drafter.taps)
    target.forward(mx.array([tokens]), target.make_cache())
    taps = target.features()
    assert taps is not None
    context = drafter.new_context()
    drafter.extend(context, taps[: len(tokens) - depth])
    mx.eval(context.arrays())
    last = len(tokens) - 1 - depth
    for anchor in range(last, answer.prompt_length - 2, -stride):
        # The context holds what lies before the anchor; a longer one is cut back, never built again.
        context.trim(anchor)
        hidden = drafter.hidden(context, tokens[anchor], depth)
        scores = drafter.scores(hidden)
        rows = mx.argmax(scores, axis=-1).astype(mx.int32)
        proposed = drafter.head.tokens(rows)
        inputs = mx.zeros((0,)) if features is None else features(hidden, scores)
        sure = confidence(scores, rows)
        mx.eval(proposed, sure, inputs)
        follow = np.asarray(tokens[anchor + 1 : anchor + 1 + depth])
        agree = np.asarray(proposed) == follow
        accepted = int(depth if agree.all() else agree.argmin())
        yield RecordedRound(
            answer.text,
            answer.category,
            anchor + 1 - answer.prompt_length,
            anchor,
            np.asarray(sure, np.float32),
            accepted,
            np.asarray(inputs, np.float32),
            answer.temperature,
        )
