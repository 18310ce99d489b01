"""DScale's length predictor (arXiv 2609.37532): a small network from a block's logits and hidden states to survival.

Inputs per slot: the top logit, its gaps to ranks 2 to 16, the top log-probability and the entropy (18); the hidden
state in 64 and the mean-centred logits in 32 fixed random directions. Then 25 values of batch context, of which a
single stream has one: that one sequence is live. For 15 slots that makes 1735 inputs, 64 hidden units and 15 outputs;
other block sizes are built alike. Outputs are survival chances made non-increasing by a cumulative minimum. Loss:
cross-entropy of "at least j accepted" plus 0.02 times the squared error of their sum against the accepted count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map
from numpy.typing import NDArray

from macspec_models.errors import CheckpointError

RANKS = 16
PER_SLOT = RANKS + 2
HIDDEN_DIRECTIONS, LOGIT_DIRECTIONS, BATCH_VALUES = 64, 32, 25
UNITS = 64
LENGTH_WEIGHT = 0.02
#: File a drafter's folder may hold.
FILE = "predictor.npz"
#: The random directions are many and each says little: their inputs start this much smaller than the others.
DIRECTIONS_SCALE = 0.03
#: Share of the hidden units left out of a step, and memory of the running mean of the weights, which is what is kept.
DROPOUT, MEAN_DECAY = 0.2, 0.99
#: One training answer of so many only chooses the epoch.
VALIDATION = 6

Floats = NDArray[np.float32]


def input_count(slots: int) -> int:
    """Inputs for a block of ``slots`` draft tokens; 1735 for 15."""
    return slots * (PER_SLOT + HIDDEN_DIRECTIONS + LOGIT_DIRECTIONS) + BATCH_VALUES


class FeatureMap:
    """Turns a drafter's output into a predictor's inputs, on the device.

    A token's direction depends on its id alone, so a head reduced to some rows gives inputs a predictor knows.

    Args:
        width: of the hidden states.
        vocab: token ids there are.
        rows: token id of each column of the drafter's logits; None when column ``i`` is token ``i``.
    """

    def __init__(
        self, slots: int, width: int, vocab: int, rows: NDArray[np.integer[Any]] | None = None, *, seed: int = 2609
    ) -> None:
        self.slots = slots
        draw = np.random.Generator(np.random.PCG64(seed))
        hidden = draw.standard_normal((width, HIDDEN_DIRECTIONS), np.float32) / np.sqrt(width)
        logits = draw.standard_normal((vocab, LOGIT_DIRECTIONS), np.float32)
        logits = logits if rows is None else logits[rows]
        self._hidden, self._logits = mx.array(hidden), mx.array(logits / np.sqrt(len(logits)))

    def __call__(self, hidden: mx.array, scores: mx.array) -> mx.array:
        """Inputs ``[..., input_count(slots)]`` of hidden states ``[..., k, width]`` and float32 logits alike.

        A block cut short (``k`` below ``slots``) has zeros for the missing slots.
        """
        *lead, count, _ = scores.shape
        top = -mx.sort(-mx.topk(scores, RANKS, axis=-1), axis=-1)
        best = top[..., :1]
        logs = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        entropy = -(mx.exp(logs) * mx.maximum(logs, -1e30)).sum(axis=-1, keepdims=True)
        ranks = mx.concatenate([best, best - top[..., 1:], mx.max(logs, axis=-1, keepdims=True), entropy], axis=-1)
        centred = scores - scores.mean(axis=-1, keepdims=True)
        parts = [ranks, hidden.astype(mx.float32) @ self._hidden, centred @ self._logits]
        if count < self.slots:
            parts = [mx.pad(part, [*((0, 0) for _ in lead), (0, self.slots - count), (0, 0)]) for part in parts]
        batch = mx.broadcast_to(mx.zeros((BATCH_VALUES,)).at[0].add(1.0), (*lead, BATCH_VALUES))
        return mx.concatenate([*(part.reshape(*lead, -1) for part in parts), batch], axis=-1)


@dataclass(frozen=True)
class Report:
    """How good a predictor is on answers it was not trained on."""

    train_rounds: int
    held_out_rounds: int
    #: Share of the variance of the accepted count that the sum of the outputs explains.
    r2: float
    #: Weights of the network.
    parameters: int
    #: The one that was kept.
    epoch: int


@dataclass(frozen=True)
class Predictor:
    """Trained weights, input scaling folded in; the scheduler runs them without MLX."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    r2: float = 0.0
    target: str = ""
    #: `fingerprint` of the drafter's weights.
    drafter: str = ""

    def __call__(self, inputs: Floats) -> Floats:
        """Survival ``[..., slots]`` of inputs ``[..., n]``, non-increasing along the slots."""
        hidden = np.maximum(inputs @ self.w1.T + self.b1, 0.0)
        chances = 1.0 / (1.0 + np.exp(-(hidden @ self.w2.T + self.b2)))
        return np.minimum.accumulate(chances, axis=-1).astype(np.float32)

    def r_squared(self, inputs: Floats, accepted: NDArray[np.int64]) -> float:
        """How well the sum of the outputs tells the accepted count; see `r_squared`."""
        return r_squared(self(inputs).sum(axis=-1), accepted.astype(np.float32))

    def save(self, path: Path) -> None:
        """Write the file ``macspec.scheduler.dscale`` reads."""
        np.savez_compressed(
            path,
            w1=self.w1,
            b1=self.b1,
            w2=self.w2,
            b2=self.b2,
            r2=np.float32(self.r2),
            target=np.str_(self.target),
            drafter=np.str_(self.drafter),
        )


def r_squared(predicted: Floats, accepted: Floats) -> float:
    """Coefficient of determination; 0 when nothing varies."""
    spread = float(((accepted - accepted.mean()) ** 2).sum())
    return 1.0 - float(((accepted - predicted) ** 2).sum()) / spread if spread > 0 else 0.0


def train(
    inputs: Floats,
    accepted: NDArray[np.int64],
    texts: NDArray[np.int64],
    held_out: NDArray[np.bool_],
    slots: int,
    *,
    epochs: int = 30,
    batch: int = 64,
    rate: float = 1e-3,
    decay: float = 1e-2,
    seed: int = 0,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[Predictor, Report]:
    """Train on rounds of texts that are not held out; some of those texts only choose the epoch.

    Args:
        inputs: ``[n, inputs]``; those of `input_count` have their random directions scaled down.
        accepted: draft tokens full verification accepted, ``[n]``.
        texts: number of the answer each round belongs to, ``[n]``.
        report: called per epoch with its number, the training loss and R² on the texts that choose.

    Raises:
        CheckpointError: too few rounds to train on and to hold out.
    """
    validation = ~held_out & np.isin(texts, np.unique(texts[~held_out])[::VALIDATION])
    fitted = ~held_out & ~validation
    if fitted.sum() < 16 * batch or validation.sum() < batch or held_out.sum() < batch:
        raise CheckpointError(
            f"{fitted.sum() + validation.sum()} rounds to train on and {held_out.sum()} held out are too few; "
            "record more answers."
        )
    mean, scale = _scaling(inputs[fitted], slots)
    x = ((inputs - mean) * scale).astype(np.float32)
    mx.random.seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], UNITS), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(UNITS, slots))
    steps = epochs * -(-int(fitted.sum()) // batch)
    optimizer = optim.AdamW(optim.cosine_decay(rate, steps), weight_decay=decay)
    step = nn.value_and_grad(network, _loss)
    averaged = network.parameters()
    order = np.random.Generator(np.random.PCG64(seed))
    numbers = np.flatnonzero(fitted)
    best: tuple[float, Predictor, int] | None = None
    for epoch in range(1, epochs + 1):
        total = 0.0
        order.shuffle(numbers)
        for begin in range(0, len(numbers), batch):
            chosen = numbers[begin : begin + batch]
            labels = (accepted[chosen, None] > np.arange(slots)).astype(np.float32)
            value, gradient = step(network, mx.array(x[chosen]), mx.array(labels))
            optimizer.update(network, gradient)
            averaged = tree_map(
                lambda mean, now: MEAN_DECAY * mean + (1.0 - MEAN_DECAY) * now, averaged, network.parameters()
            )
            mx.eval(network.parameters(), optimizer.state, averaged, value)
            total += float(value.item()) * len(chosen)
        made = _folded(averaged, mean, scale)
        r2 = made.r_squared(inputs[validation], accepted[validation])
        if best is None or r2 > best[0]:
            best = (r2, made, epoch)
        if report is not None:
            report(epoch, total / len(numbers), r2)
    assert best is not None
    _, predictor, epoch = best
    r2 = predictor.r_squared(inputs[held_out], accepted[held_out])
    size = sum(part.size for part in (predictor.w1, predictor.b1, predictor.w2, predictor.b2))
    return replace(predictor, r2=r2), Report(int((~held_out).sum()), int(held_out.sum()), r2, int(size), epoch)


def _scaling(inputs: Floats, slots: int) -> tuple[Floats, Floats]:
    """Mean and factor of each input."""
    scale = 1.0 / np.maximum(inputs.std(axis=0), 1e-3)
    if len(scale) == input_count(slots):
        scale[slots * PER_SLOT : -BATCH_VALUES] *= DIRECTIONS_SCALE
    return inputs.mean(axis=0), scale


def _loss(network: Any, x: mx.array, labels: mx.array) -> mx.array:
    logits = network(x)
    entropy = nn.losses.binary_cross_entropy(logits, labels, reduction="mean")
    missed = mx.sigmoid(logits).sum(axis=-1) - labels.sum(axis=-1)
    total: mx.array = entropy + LENGTH_WEIGHT * (missed**2).mean()
    return total


def _folded(parameters: Any, mean: Floats, scale: Floats) -> Predictor:
    """A predictor of unscaled inputs from a network of scaled ones."""
    first, second = parameters["layers"][0], parameters["layers"][-1]
    w1, b1, w2, b2 = (np.array(part) for part in (first["weight"], first["bias"], second["weight"], second["bias"]))
    folded = w1 * scale
    return Predictor(folded.astype(np.float32), (b1 - folded @ mean).astype(np.float32), w2, b2)
