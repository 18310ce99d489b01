"""Train DSpark's heads over a trained DFlash drafter, whose own weights stay as they are (DSpark sections 3.2 to 3.4).

The backbone runs once over some texts; its hidden states are kept and only the two heads learn from them, which takes
minutes where a drafter takes hours. Two things differ from the paper. The anchor's slot does not predict, since the
backbone was not trained to (``sample_from_anchor`` is false). And the target's distributions are not stored: the Markov
head learns from the target's tokens by cross-entropy alone, the confidence head whether the best token is the target's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.dflash import DFlashConfig
from macspec_models.drafters.dspark import ConfidenceHead, DSparkDrafter, DSparkNetwork
from macspec_models.drafters.temperature import fit_temperatures
from macspec_models.target import Target
from macspec_models.training.drafter import denoise
from macspec_models.training.responses import Example

#: Called with the values of one line of progress.
Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class HeadRecipe:
    """Hyper-parameters of the heads."""

    rank: int = 64
    anchors: int = 24
    batch: int = 512
    learning_rate: float = 2e-3
    decay_gamma: float = 4.0
    seed: int = 0


@dataclass(frozen=True)
class Slots:
    """Open slots of blocks along texts: hidden states ``[blocks, slots, D]``, the token before each, the true one."""

    hidden: NDArray[np.float32]
    before: NDArray[np.int64]
    labels: NDArray[np.int64]


class Heads(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """What is trained; at the start the Markov head changes nothing.

    ``W1`` is a projection of the embedding table, so that a token never seen in training gets the latent of tokens like
    it, and only the rows of ``W2`` the drafter scores are kept; `full` gives both in the published form.
    """

    def __init__(self, config: DFlashConfig, table: mx.array, rows: mx.array) -> None:
        """``table`` is the embedding ``[vocab, D]``, ``rows`` the ids of the tokens that are scored."""
        super().__init__()
        values = np.array(table[:: max(1, table.shape[0] // 4096)].astype(mx.float32))
        _, spread, directions = np.linalg.svd(values, full_matrices=False)
        rank, unit = int(config.extra["markov_rank"]), len(values) ** 0.5 / spread
        self.first = mx.array((directions[:rank] * unit[:rank, None]).T.astype(np.float32))
        self.second = mx.zeros((rows.shape[0], rank))
        self.confidence_head = ConfidenceHead(config)

    def full(self, table: mx.array, rows: mx.array) -> list[tuple[str, mx.array]]:
        """The heads' tensors by their published names."""
        second = mx.zeros((table.shape[0], self.second.shape[1]))
        second[rows] = self.second
        names = {"markov_w1.weight": table.astype(mx.float32) @ self.first, "markov_w2.weight": second}
        heads: list[tuple[str, mx.array]] = tree_flatten(self.confidence_head.parameters())
        return [
            *((f"markov_head.{name}", value) for name, value in names.items()),
            *((f"confidence_head.{name}", value) for name, value in heads),
        ]


def scored_tokens(drafter: DFlashDrafter) -> mx.array:
    """Token id of every row of the drafter's head."""
    return mx.arange(drafter.config.vocab_size) if drafter.head.rows is None else drafter.head.rows


def dspark_config(config: DFlashConfig, rank: int, temperatures: tuple[float, ...] = ()) -> DFlashConfig:
    """The configuration of a DSpark drafter over a DFlash backbone of this one."""
    extra = {
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "confidence_temperatures": temperatures,
    }
    return replace(config, sample_from_anchor=False, extra=extra)


def collect_slots(
    drafter: DFlashDrafter, target: Target, examples: Sequence[Example], *, anchors: int, seconds: float, seed: int
) -> Slots:
    """Hidden states of blocks at random places of the examples' answers, until the examples or the seconds run out.

    Raises:
        ValueError: no example is as long as a block.
    """
    config, rng = drafter.config, np.random.default_rng(seed)
    target.set_taps(drafter.taps)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    begin = time.monotonic()
    for number in rng.permutation(len(examples)):
        example = examples[number]
        places = np.arange(example.prompt_length, len(example.tokens) - config.block_size)
        if not len(places) or (found and time.monotonic() - begin > seconds):
            continue
        chosen = np.sort(rng.choice(places, min(anchors, len(places)), replace=False))
        real = example.tokens[chosen[:, None] + np.arange(config.block_size)].astype(np.int64)
        blocks = np.full_like(real, config.mask_token_id)
        blocks[:, 0] = real[:, 0]
        target.forward(mx.array(example.tokens[None].astype(np.int32)), target.make_cache())
        features = target.features()
        assert features is not None
        visible = np.arange(len(example.tokens))[None] < chosen[:, None]
        embedded = drafter.embed(mx.array(blocks)) * config.input_embedding_scale
        hidden = denoise(drafter.network, features[None], embedded, mx.array(chosen), mx.array(visible)[None])[:, 1:]
        found.append((np.array(hidden.astype(mx.float32)), real[:, :-1], real[:, 1:]))
    if not found:
        raise ValueError("no example is as long as a block")
    return Slots(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def train_heads(drafter: DFlashDrafter, slots: Slots, recipe: HeadRecipe, steps: int, report: Report) -> Heads:
    """Train both heads on the tokens the drafter's own head scores."""
    vocab, tokens = drafter.config.vocab_size, scored_tokens(drafter)
    place = np.full(vocab, -1)
    place[np.array(tokens)] = np.arange(len(tokens))
    table = drafter.embed(mx.arange(vocab))
    heads = Heads(dspark_config(drafter.config, recipe.rank), table, tokens)
    optimizer = optim.AdamW(recipe.learning_rate, weight_decay=0.0)
    optimizer.init(heads.trainable_parameters())
    state = [heads.state, optimizer.state]
    gradient = nn.value_and_grad(heads, head_loss)

    @partial(mx.compile, inputs=state, outputs=state)
    def update(*batch: mx.array) -> tuple[mx.array, mx.array]:
        (loss, right), grads = gradient(heads, *batch)
        optimizer.update(heads, grads)
        return loss, right

    width = slots.hidden.shape[-1]
    hidden, before, labels = slots.hidden.reshape(-1, width), slots.before.reshape(-1), place[slots.labels.reshape(-1)]
    weights = np.tile(np.exp(-np.arange(slots.labels.shape[1]) / recipe.decay_gamma), len(slots.labels)) * (labels >= 0)
    rng = np.random.default_rng(recipe.seed)
    for step in range(steps):
        chosen = rng.integers(0, len(hidden), recipe.batch)
        states = mx.array(hidden[chosen])
        optimizer.learning_rate = recipe.learning_rate * min(1.0, 2 * (1 - step / steps))
        loss, right = update(
            states,
            drafter.scores(states),
            table[mx.array(before[chosen])].astype(mx.float32),
            mx.array(np.maximum(labels[chosen], 0)),
            mx.array(weights[chosen].astype(np.float32)),
        )
        mx.eval(state, loss)
        if (step + 1) % 100 == 0 or step + 1 == steps:
            report({"step": step + 1, "loss": round(cast(float, loss.item()), 4)})
    return heads


def head_loss(
    heads: Heads, hidden: mx.array, base: mx.array, before: mx.array, labels: mx.array, weights: mx.array
) -> tuple[mx.array, mx.array]:
    """Weighted cross-entropy of the corrected logits plus that of the confidence, and which slots were right.

    Args:
        hidden: ``[n, D]``; ``base``: the drafter's logits ``[n, rows]``; ``before``: embedded tokens before ``[n, D]``;
            ``labels``: row numbers ``[n]``; ``weights``: ``[n]``, 0 where the true token is not among the rows.
    """
    latent = before @ heads.first
    scores = base + latent @ heads.second.T
    total = mx.maximum(weights.sum(), 1e-6)
    token_loss = (nn.losses.cross_entropy(scores, labels) * weights).sum() / total
    right = mx.stop_gradient((mx.argmax(scores, axis=-1) == labels) & (weights > 0))
    inputs = mx.stop_gradient(mx.concatenate([hidden, latent], axis=-1))
    sure = heads.confidence_head.proj(inputs)[:, 0]
    return token_loss + nn.losses.binary_cross_entropy(sure, right.astype(mx.float32)), right


def assemble(drafter: DFlashDrafter, heads: Heads, temperatures: tuple[float, ...] = ()) -> DSparkDrafter:
    """A DSpark drafter of a DFlash backbone and trained heads."""
    config = dspark_config(drafter.config, heads.first.shape[1], temperatures)
    network = DSparkNetwork(config)
    weights: list[tuple[str, mx.array]] = tree_flatten(drafter.network.parameters())
    weights += heads.full(drafter.embed(mx.arange(config.vocab_size)), scored_tokens(drafter))
    network.load_weights(weights)
    mx.eval(network.parameters())
    return DSparkDrafter(network, drafter.embed, drafter.head)


def accepted(drafter: DFlashDrafter, slots: Slots) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draft tokens right from the first on ``[blocks]``, and the probabilities the drafter gave ``[blocks, slots]``."""
    counts, chances = [], []
    for hidden, before, labels in zip(slots.hidden, slots.before, slots.labels, strict=True):
        block = drafter.propose(mx.array(hidden), int(before[0]), None)
        right = np.array(block.tokens) == labels
        counts.append(len(right) if right.all() else int(np.argmin(right)))
        chances.append(np.array(block.confidence[:, 0], np.float64))
    return np.array(counts), np.array(chances)


def calibrated(drafter: DFlashDrafter, heads: Heads, slots: Slots) -> tuple[DSparkDrafter, dict[str, Any]]:
    """The drafter with temperatures fitted on ``slots``, which it was not trained on, and figures of both on them."""
    plain, _ = accepted(drafter, slots)
    counts, chances = accepted(assemble(drafter, heads), slots)
    safe = np.clip(chances, 1e-6, 1 - 1e-6)
    temperatures = fit_temperatures(np.log(safe / (1 - safe)), counts)
    figures = {
        "blocks": len(counts),
        "dflash": round(1 + float(plain.mean()), 3),
        "dspark": round(1 + float(counts.mean()), 3),
        "temperatures": [round(value, 3) for value in temperatures],
    }
    return assemble(drafter, heads, temperatures), figures
