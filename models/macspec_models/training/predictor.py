"""DScale's length predictor (arXiv 2609.37532): a small network from a block's logits and hidden states to survival.

Inputs per slot: the top logit, its gaps to ranks 2 to 16, the top log-probability and the entropy (18); the hidden
state in 64 and the mean-centred logits in 32 fixed random directions. Then 25 values of batch context, of which a
single stream has one: that one sequence is live. For 15 slots that makes 1735 inputs, 64 hidden units and 15 outputs;
other block sizes are built alike. Outputs are survival chances made non-increasing by a cumulative minimum. Loss:
cross-entropy of "at least j accepted" plus 0.02 times the squared error of their sum against the accepted count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from macspec_models.errors import CheckpointError

RANKS = 16
PER_SLOT = RANKS + 2
HIDDEN_DIRECTIONS, LOGIT_DIRECTIONS, BATCH_VALUES = 64, 32, 25
UNITS = 64
LENGTH_WEIGHT = 0.02
#: File a drafter's folder may hold.
FILE = "predictor.npz"

Floats = NDArray[np.float32]


def input_count(slots: int) -> int:
    """Inputs for a block of ``slots`` draft tokens; 1735 for 15."""
    return slots * (PER_SLOT + HIDDEN_DIRECTIONS + LOGIT_DIRECTIONS) + BATCH_VALUES


class FeatureMap:
    """Turns a drafter's output into a predictor's inputs, on the device.

    Args:
        width: of the hidden states.
        scores: columns of the drafter's logits.
    """

    def __init__(self, slots: int, width: int, scores: int, *, seed: int = 2609) -> None:
        self.slots = slots
        draw = np.random.Generator(np.random.PCG64(seed))
        hidden = draw.standard_normal((width, HIDDEN_DIRECTIONS), np.float32) / np.sqrt(width)
        logits = draw.standard_normal((scores, LOGIT_DIRECTIONS), np.float32) / np.sqrt(scores)
        self._hidden, self._logits = mx.array(hidden), mx.array(logits)

    def __call__(self, hidden: mx.array, scores: mx.array) -> mx.array:
        """Inputs ``[input_count(slots)]`` of hidden states ``[k, width]`` and float32 logits ``[k, columns]``.

        A block cut short (``k`` below ``slots``) has zeros for the missing slots.
        """
        count = scores.shape[0]
        top = -mx.sort(-mx.topk(scores, RANKS, axis=-1), axis=-1)
        best = top[:, :1]
        logs = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        entropy = -(mx.exp(logs) * mx.maximum(logs, -1e30)).sum(axis=-1, keepdims=True)
        ranks = mx.concatenate([best, best - top[:, 1:], mx.max(logs, axis=-1, keepdims=True), entropy], axis=-1)
        centred = scores - scores.mean(axis=-1, keepdims=True)
        parts = [ranks, hidden.astype(mx.float32) @ self._hidden, centred @ self._logits]
        if count < self.slots:
            parts = [mx.pad(part, [(0, self.slots - count), (0, 0)]) for part in parts]
        batch = mx.zeros((BATCH_VALUES,)).at[0].add(1.0)
        return mx.concatenate([*(part.reshape(-1) for part in parts), batch])


@dataclass(frozen=True)
class Report:
    """How good a predictor is on answers it was not trained on."""

    train_rounds: int
    held_out_rounds: int
    #: Share of the variance of the accepted count that the sum of the outputs explains.
    r2: float
    #: Weights of the network.
    parameters: int
    epochs: int


@dataclass(frozen=True)
class Predictor:
    """Trained weights, input scaling folded in; the scheduler runs them without MLX."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    r2: float = 0.0
    target: str = ""
    drafter: str = ""

    def __call__(self, inputs: Floats) -> Floats:
        """Survival ``[..., slots]`` of inputs ``[..., n]``, non-increasing along the slots."""
        hidden = np.maximum(inputs @ self.w1.T + self.b1, 0.0)
        chances = 1.0 / (1.0 + np.exp(-(hidden @ self.w2.T + self.b2)))
        return np.minimum.accumulate(chances, axis=-1).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the file ``macspec.scheduler.dscale`` reads."""
        np.savez(
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
    held_out: NDArray[np.bool_],
    slots: int,
    *,
    epochs: int = 30,
    batch: int = 256,
    rate: float = 1e-3,
    decay: float = 1e-2,
    seed: int = 0,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[Predictor, Report]:
    """Train on the rounds that are not held out; keeps the epoch with the best held-out fit.

    Args:
        inputs: ``[n, input_count(slots)]``.
        accepted: draft tokens full verification accepted, ``[n]``.
        report: called per epoch with its number, the training loss and the held-out R².

    Raises:
        CheckpointError: too few rounds to train on and to hold out.
    """
    import mlx.nn as nn
    import mlx.optimizers as optim

    if (~held_out).sum() < 4 * batch or held_out.sum() < 64:
        raise CheckpointError(
            f"{(~held_out).sum()} rounds to train on and {held_out.sum()} held out are too few; record more answers."
        )
    mean = inputs[~held_out].mean(axis=0)
    scale = 1.0 / np.maximum(inputs[~held_out].std(axis=0), 1e-3)
    x = ((inputs - mean) * scale).astype(np.float32)
    x_train, x_test = mx.array(x[~held_out]), mx.array(x[held_out])
    labels = mx.array((accepted[~held_out, None] > np.arange(slots)).astype(np.float32))
    counts = mx.array(accepted[~held_out].astype(np.float32))
    mx.random.seed(seed)
    network = nn.Sequential(nn.Linear(x.shape[1], UNITS), nn.ReLU(), nn.Linear(UNITS, slots))

    def loss(model: Any, x: mx.array, y: mx.array, n: mx.array) -> mx.array:
        logits = model(x)
        entropy = nn.losses.binary_cross_entropy(logits, y, reduction="mean")
        total: mx.array = entropy + LENGTH_WEIGHT * ((mx.sigmoid(logits).sum(axis=-1) - n) ** 2).mean()
        return total

    step = nn.value_and_grad(network, loss)
    optimizer = optim.AdamW(rate, weight_decay=decay)
    order = np.random.Generator(np.random.PCG64(seed))
    best: tuple[float, list[Floats], int] = (-np.inf, [], 0)
    truth = accepted[held_out].astype(np.float32)
    for epoch in range(1, epochs + 1):
        total = 0.0
        numbers = order.permutation(len(counts))
        for begin in range(0, len(numbers), batch):
            chosen = mx.array(numbers[begin : begin + batch])
            value, gradient = step(network, x_train[chosen], labels[chosen], counts[chosen])
            optimizer.update(network, gradient)
            mx.eval(network.parameters(), optimizer.state, value)
            total += float(value.item()) * len(chosen)
        first, second = network.layers[0], network.layers[2]
        weights = [np.array(part) for part in (first.weight, first.bias, second.weight, second.bias)]
        chances = np.minimum.accumulate(np.array(mx.sigmoid(network(x_test))), axis=-1)
        r2 = r_squared(chances.sum(axis=-1), truth)
        if r2 > best[0]:
            best = (r2, weights, epoch)
        if report is not None:
            report(epoch, total / len(numbers), r2)
    r2, (w1, b1, w2, b2), _ = best
    folded = w1 * scale
    predictor = Predictor(folded.astype(np.float32), (b1 - folded @ mean).astype(np.float32), w2, b2, r2)
    size = w1.size + b1.size + w2.size + b2.size
    return predictor, Report(int((~held_out).sum()), int(held_out.sum()), r2, int(size), epochs)
