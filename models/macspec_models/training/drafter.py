"""Train a DFlash drafter for a target: random anchors, position-decayed loss, warm start (DFlash section 4.2).

The schedule is warm-up, constant, decay: the constant phase can be resumed for as long as it pays, and a decay started
from any checkpoint of it gives a drafter to ship.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from macspec_models.drafters.dflash import DFlashConfig, DFlashNetwork
from macspec_models.training.features import FeatureStore
from macspec_models.training.responses import Example


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters. A step sees ``sequences * anchors`` blocks."""

    sequences: int = 4
    anchors: int = 24
    window: int = 288
    learning_rate: float = 1.2e-3
    warmup: int = 100
    decay_gamma: float = 4.0
    frequent_tokens: int = 6000
    sampled_tokens: int = 2000
    clip: float = 1.0
    weight_decay: float = 0.05
    #: Share of the context states' values dropped in training. A few thousand answers are soon learned by heart.
    dropout: float = 0.1
    #: Share of steps that compute the features of one more sequence.
    fresh_share: float = 0.5
    seed: int = 0


#: The mask of every open slot: an exclamation mark, rare in answers. Any id will do, since the drafter learns it.
SMOLLM2_MASK = 17


def drafter_config(
    target: Any, *, layers: int = 3, block_size: int = 8, taps: int = 5, mask: int = SMOLLM2_MASK
) -> DFlashConfig:
    """A drafter shaped like its target's layers, tapping evenly from the second to the third-last (DFlash section 5).

    The last tap is the third-last layer's output; the first the second layer's.
    """
    args = target.model.args
    span = args.num_hidden_layers - 4
    return DFlashConfig(
        hidden_size=args.hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=args.num_attention_heads,
        num_key_value_heads=args.num_key_value_heads,
        head_dim=args.head_dim or args.hidden_size // args.num_attention_heads,
        intermediate_size=args.intermediate_size,
        vocab_size=args.vocab_size,
        block_size=block_size,
        mask_token_id=mask,
        target_layer_ids=tuple(round(1 + number * span / (taps - 1)) for number in range(taps)),
        num_target_layers=args.num_hidden_layers,
        target_hidden_size=args.hidden_size,
        rms_norm_eps=args.rms_norm_eps,
        rope_theta=args.rope_theta,
        max_position_embeddings=args.max_position_embeddings or 8192,
    )


def warm_start(network: DFlashNetwork, target: Any) -> None:
    """Initialise the drafter's layers from the target's last ones: it then learns in minutes instead of hours.

    Targets with interleaved rotary pairs are re-ordered to the drafter's half-split layout. The query and key norms
    have no counterpart in a Llama target; 1.6 starts them near the root mean square of its projected heads.
    """
    config, args = network.config, target.args
    dim = config.head_dim

    def half_split(weight: mx.array, heads: int) -> mx.array:
        if not getattr(args, "rope_traditional", False):
            return weight
        return weight.reshape(heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(heads * dim, -1)

    for layer, source in zip(network.layers, target.model.layers[-len(network.layers) :], strict=True):
        attention, origin = layer.self_attn, source.self_attn
        attention.q_proj.weight = half_split(origin.q_proj.weight, config.num_attention_heads)
        attention.k_proj.weight = half_split(origin.k_proj.weight, config.num_key_value_heads)
        attention.v_proj.weight = mx.array(origin.v_proj.weight)
        attention.o_proj.weight = mx.array(origin.o_proj.weight)
        attention.q_norm.weight = mx.full((dim,), 1.6)
        attention.k_norm.weight = mx.full((dim,), 1.6)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).weight = mx.array(getattr(source.mlp, name).weight)
        layer.input_layernorm.weight = mx.array(source.input_layernorm.weight)
        layer.post_attention_layernorm.weight = mx.array(source.post_attention_layernorm.weight)
    network.norm.weight = mx.array(target.model.norm.weight)


class Batches:
    """Random windows with random anchors, as arrays ready for the loss."""

    def __init__(
        self,
        recipe: Recipe,
        config: DFlashConfig,
        examples: Sequence[Example],
        store: FeatureStore,
        target: Any,
        seed: int,
    ) -> None:
        self.recipe, self.config, self.examples, self.store = recipe, config, examples, store
        self.embedding = target.model.embed_tokens
        self.random = np.random.default_rng(seed)
        counts = np.bincount(
            np.concatenate([e.tokens[e.prompt_length :] for e in examples]), minlength=config.vocab_size
        )
        order = np.argsort(-counts, kind="stable")
        self.frequent, self.rare = np.sort(order[: recipe.frequent_tokens]), order[recipe.frequent_tokens :]

    def draw(self, pool: np.ndarray) -> tuple[mx.array, ...]:
        """One batch: features, embedded blocks, anchors, context masks, labels, weights, head rows, corrections."""
        recipe, size, rng = self.recipe, self.config.block_size, self.random
        chosen = self._choose(pool)
        features = np.zeros((recipe.sequences, recipe.window, self.store.width), np.float32)
        tokens = np.zeros((recipe.sequences, recipe.window + size), np.int64)
        lengths = np.zeros(recipe.sequences, np.int64)
        anchors = np.zeros((recipe.sequences, recipe.anchors), np.int64)
        for row, (index, values) in enumerate(zip(chosen, self.store.get(chosen.tolist()), strict=True)):
            example = self.examples[index]
            start = int(rng.integers(0, max(1, len(example.tokens) - recipe.window + 1)))
            length = min(recipe.window, len(example.tokens) - start)
            tokens[row, :length] = example.tokens[start : start + length]
            features[row, :length] = values[start : start + length]
            lengths[row] = length
            first = min(max(1, example.prompt_length - start), length - 2)
            anchors[row] = rng.integers(first, length - 1, recipe.anchors)

        positions = anchors[:, :, None] + np.arange(size)
        real = np.take_along_axis(tokens, positions.reshape(recipe.sequences, -1), 1).reshape(positions.shape)
        weights = (positions[:, :, 1:] < lengths[:, None, None]) * np.exp(-np.arange(size - 1) / recipe.decay_gamma)
        blocks = np.full_like(real, self.config.mask_token_id)
        blocks[:, :, 0] = real[:, :, 0]
        rows, labels, correction = self._head_rows(real[:, :, 1:])
        visible = np.arange(recipe.window)[None, None] < anchors[:, :, None]
        count = recipe.sequences * recipe.anchors
        return (
            mx.array(features),
            self.embedding(mx.array(blocks.reshape(count, size))),
            mx.array(anchors.reshape(-1).astype(np.int32)),
            mx.array(visible),
            mx.array(labels.reshape(count, size - 1)),
            mx.array(weights.reshape(count, size - 1).astype(np.float32)),
            self.embedding(mx.array(rows)),
            mx.array(correction),
        )

    def _choose(self, pool: np.ndarray) -> np.ndarray:
        """Sequences of a batch: now and then one whose features are missing, the others from those at hand.

        A new sequence costs as much as a training step, so the first epoch is spread over many steps.
        """
        recipe = self.recipe
        ready = pool[self.store.ready[pool] == 1]
        count, rng = self.recipe.sequences, self.random
        if len(ready) == len(pool):
            return rng.choice(pool, count, replace=False)
        fresh = pool[self.store.ready[pool] == 0]
        wanted = int(rng.random() < recipe.fresh_share) if len(ready) >= 16 * count else count
        new = rng.choice(fresh, min(len(fresh), wanted), replace=False)
        return np.concatenate([new, rng.choice(ready, count - len(new), replace=False)])

    def _head_rows(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sampled softmax: every frequent token, every label, and rare negatives weighted up to stand for the rest."""
        recipe = self.recipe
        unusual = np.setdiff1d(labels, self.frequent)[: recipe.sampled_tokens]
        negatives = np.setdiff1d(self.random.choice(self.rare, recipe.sampled_tokens + 1, replace=False), unusual)
        negatives = negatives[: recipe.sampled_tokens - len(unusual)]
        padding = np.full(recipe.sampled_tokens - len(unusual) - len(negatives), self.rare[-1])
        rows = np.concatenate([self.frequent, unusual, negatives, padding])
        correction = np.zeros(len(rows), np.float32)
        share = (len(self.rare) - len(unusual)) / max(1, len(negatives))
        correction[len(self.frequent) + len(unusual) :] = math.log(share)
        place = np.zeros(self.config.vocab_size, np.int64)
        place[rows] = np.arange(len(rows))
        return rows, place[labels], correction


def denoise(
    network: DFlashNetwork,
    features: mx.array,
    blocks: mx.array,
    anchors: mx.array,
    visible: mx.array,
    dropout: float = 0.0,
) -> mx.array:
    """``DFlashNetwork.__call__`` for several blocks of each sequence at once, with the context projected only once.

    Windows and causal layers are as there (`block_mask`).

    Args:
        features: ``[sequences, N, taps * width]``.
        blocks: embedded blocks ``[sequences * anchors, S, D]``, a sequence's blocks beside each other.
        anchors: position of each block's anchor ``[sequences * anchors]``.
        visible: which context positions a block sees ``[sequences, anchors, N]``.
        dropout: share of the fused context's values set to zero, the others scaled up to make up for them.

    Returns:
        Normalised hidden states ``[sequences * anchors, S, D]``.
    """
    sequences, count, _ = visible.shape
    _, size, width = blocks.shape
    seen = mx.repeat(visible, size, axis=1)
    number = mx.repeat(mx.arange(count), size)
    own = mx.broadcast_to(number[:, None] == number[None], (sequences, count * size, count * size))
    place = (anchors[:, None] + mx.arange(size)).reshape(sequences, count * size)
    masks: dict[tuple[int | None, bool], mx.array] = {}

    def mask(window: int | None, causal: bool) -> mx.array:
        """``[sequences, 1, anchors * S, N + anchors * S]`` of a kind of layer."""
        if (window, causal) not in masks:
            near = seen if window is None else seen & (place[..., None] - mx.arange(seen.shape[-1]) < window)
            before = own & (place[..., None] >= place[:, None]) if causal else own
            masks[window, causal] = mx.concatenate([near, before], axis=-1)[:, None]
        return masks[window, causal]

    def fold(heads: mx.array) -> mx.array:
        """``[sequences * anchors, heads, S, dim]`` to ``[sequences, heads, anchors * S, dim]``."""
        split = heads.reshape(sequences, count, *heads.shape[1:]).swapaxes(1, 2)
        return split.reshape(sequences, heads.shape[1], count * size, heads.shape[-1])

    fused = network.fuse(features)
    if dropout > 0.0:
        fused = fused * mx.random.bernoulli(1.0 - dropout, fused.shape) / (1.0 - dropout)
    x = blocks
    for kind, layer in enumerate(network.layers):
        keys, values = layer.self_attn.key_value(fused, 0)
        normed = layer.input_layernorm(x)
        queries = fold(layer.self_attn.query(normed, anchors))
        block_keys, block_values = (fold(part) for part in layer.self_attn.key_value(normed, anchors))
        keys = mx.concatenate([keys, block_keys], axis=2)
        values = mx.concatenate([values, block_values], axis=2)
        seeing = mask(network.config.window(kind), network.config.causal(kind))
        x = x + layer.self_attn.attend(queries, keys, values, seeing).reshape(-1, size, width)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return cast(mx.array, network.norm(x))


def block_loss(
    network: DFlashNetwork,
    features: mx.array,
    blocks: mx.array,
    anchors: mx.array,
    visible: mx.array,
    labels: mx.array,
    weights: mx.array,
    head: mx.array,
    correction: mx.array,
    *,
    dropout: float = 0.0,
) -> tuple[mx.array, mx.array]:
    """Position-decayed cross-entropy of the mask slots, and which slots were right ``[blocks, slots]``."""
    hidden = denoise(network, features, blocks, anchors, visible, dropout)[:, 1:]
    scores = hidden @ head.T + correction
    losses = nn.losses.cross_entropy(scores, labels)
    return (losses * weights).sum() / weights.sum(), mx.argmax(scores, axis=-1) == labels


class Trainer:
    """Owns the network, the optimiser and their checkpoints."""

    def __init__(
        self, recipe: Recipe, config: DFlashConfig, target: Any, examples: Sequence[Example], work: Path
    ) -> None:
        self.recipe, self.config, self.work = recipe, config, work
        self.network = DFlashNetwork(config)
        warm_start(self.network, target.model)
        mx.eval(self.network.parameters())
        self.optimizer = optim.AdamW(recipe.learning_rate, betas=[0.9, 0.95], weight_decay=recipe.weight_decay)
        self.optimizer.init(self.network.trainable_parameters())
        self.step, self.seconds = 0, 0.0
        store = FeatureStore(work / "features", examples, target.model, config.target_layer_ids)
        self.examples = examples
        self.train_pool = np.array([e.index for e in examples if not e.held_out])
        self.held_out_pool = np.array([e.index for e in examples if e.held_out])
        self.batches = Batches(recipe, config, examples, store, target.model, recipe.seed)
        self.held_out_batches = Batches(recipe, config, examples, store, target.model, recipe.seed + 1)
        # Dropout draws from MLX's own generator, whose state a compiled step must be told of.
        state = [self.network.state, self.optimizer.state, mx.random.state]
        gradient = nn.value_and_grad(self.network, block_loss)

        @partial(mx.compile, inputs=state, outputs=state)
        def update(*batch: mx.array) -> tuple[mx.array, mx.array]:
            (loss, right), grads = gradient(self.network, *batch, dropout=recipe.dropout)
            grads, _ = optim.clip_grad_norm(grads, recipe.clip)
            self.optimizer.update(self.network, grads)
            return loss, right

        self._update, self._state = update, state

    def train(
        self,
        steps: int,
        *,
        decay_steps: int = 0,
        report: Callable[[dict[str, Any]], None],
        report_every: float = 60.0,
        save_every: float = 120.0,
    ) -> None:
        """Run ``steps`` steps; over the last ``decay_steps`` the learning rate falls linearly to zero."""
        last = self.step + steps
        mark, saved = time.monotonic(), time.monotonic()
        loss_mean, right_mean, begin = 0.0, np.zeros(self.config.block_size - 1), time.monotonic()
        seen = 0
        while self.step < last:
            rate = self.recipe.learning_rate * min(1.0, (self.step + 1) / self.recipe.warmup)
            if decay_steps:
                rate *= min(1.0, (last - self.step) / decay_steps)
            self.optimizer.learning_rate = rate
            batch = self.batches.draw(self.train_pool)
            loss, right = self._update(*batch)
            mx.eval(self._state, loss, right)
            self.step, seen = self.step + 1, seen + 1
            loss_mean += cast(float, loss.item())
            valid = np.array(batch[5]) > 0
            right_mean += (np.array(right) * valid).sum(0) / np.maximum(valid.sum(0), 1)
            now = time.monotonic()
            if now - mark >= report_every or self.step == last:
                self.seconds += now - begin
                begin = now
                report(
                    {
                        "step": self.step,
                        "seconds": round(self.seconds),
                        "rate": rate,
                        "loss": round(loss_mean / seen, 4),
                        "train": (right_mean / seen).round(3).tolist(),
                        **self.held_out(batches=4),
                    }
                )
                mark, loss_mean, right_mean, seen = now, 0.0, right_mean * 0, 0
            if now - saved >= save_every or self.step == last:
                self.save()
                saved = time.monotonic()

    def held_out(self, batches: int) -> dict[str, Any]:
        """Per-slot accuracy and expected acceptance length on answers that are never trained on."""
        right, valid = [], []
        for _ in range(batches):
            batch = self.held_out_batches.draw(self.held_out_pool)
            right.append(np.array(block_loss(self.network, *batch)[1]))
            valid.append(np.array(batch[5]) > 0)
        hits, real = np.concatenate(right), np.concatenate(valid)
        whole = real.all(axis=1)
        accepted = np.cumprod(hits[whole], axis=1).sum(axis=1)
        accuracy = (hits * real).sum(0) / np.maximum(real.sum(0), 1)
        return {"held_out": accuracy.round(3).tolist(), "acceptance_length": round(1 + float(accepted.mean()), 3)}

    def save(self) -> None:
        """Write weights, optimiser and counters; each file replaces the old one whole."""
        folder = self.work / "checkpoint"
        folder.mkdir(parents=True, exist_ok=True)
        for name, tree in (("network", self.network.parameters()), ("optimizer", self.optimizer.state)):
            partial_file = folder / f"{name}.partial.safetensors"
            mx.save_safetensors(str(partial_file), dict(tree_flatten(tree)))
            partial_file.replace(folder / f"{name}.safetensors")
        counters = {"step": self.step, "seconds": self.seconds, "recipe": asdict(self.recipe)}
        (folder / "counters.partial.json").write_text(json.dumps(counters))
        (folder / "counters.partial.json").replace(folder / "counters.json")

    def resume(self) -> bool:
        """Continue from the last checkpoint in the work folder, if there is one."""
        folder = self.work / "checkpoint"
        if not (folder / "counters.json").exists():
            return False
        self.network.load_weights(str(folder / "network.safetensors"))
        self.optimizer.state = tree_unflatten(
            list(cast(dict[str, mx.array], mx.load(str(folder / "optimizer.safetensors"))).items())
        )
        self._state[1] = self.optimizer.state
        counters = json.loads((folder / "counters.json").read_text())
        self.step, self.seconds = counters["step"], counters["seconds"]
        # A resumed run must not draw the batches of the first one again.
        self.batches.random = np.random.default_rng([self.recipe.seed, self.step])
        return True
