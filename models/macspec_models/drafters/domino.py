"""Domino (arXiv 2605.29707): DFlash whose logits are corrected by a recurrent summary of the tokens drafted before.

``logits_k += W_b SiLU(W_a [h_k ; g_k])`` from draft token ``pure_draft_prefix_len`` on, where ``g_k`` is a GRU's state
after the anchor and the draft tokens before k.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.confidence import choose, confidence
from macspec_models.drafters.dflash import DFlashConfig, DFlashNetwork
from macspec_models.drafters.head import DraftHead, gather_head
from macspec_models.drafters.interface import DraftBlock, Embed


class PrefixGRU(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """One GRU layer without biases, under the names PyTorch gives its weights (reset, update, new)."""

    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.weight_ih_l0 = mx.zeros((3 * state, width))
        self.weight_hh_l0 = mx.zeros((3 * state, state))

    def step(self, x: mx.array, state: mx.array) -> mx.array:
        """The state ``[H]`` after reading ``x [width]``."""
        reset_x, update_x, new_x = mx.split(self.weight_ih_l0 @ x, 3)
        reset_h, update_h, new_h = mx.split(self.weight_hh_l0 @ state, 3)
        update = mx.sigmoid(update_x + update_h)
        new = mx.tanh(new_x + mx.sigmoid(reset_x + reset_h) * new_h)
        return (1 - update) * new + update * state


class DominoNetwork(DFlashNetwork):
    """The trainable part of a Domino drafter."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        state, bottleneck = int(config.extra["gru_hidden_dim"]), int(config.extra["emb_dim"])
        self.prefix_gru = PrefixGRU(config.hidden_size, state)
        self.embed_proj = [
            nn.Linear(config.hidden_size + state, bottleneck, bias=False),
            nn.SiLU(),
            nn.Linear(bottleneck, config.vocab_size, bias=False),
        ]


class DominoDrafter(DFlashDrafter):
    """Domino at work. Trained on shifted labels, its anchor slot predicts too (``sample_from_anchor``)."""

    kind = "domino"

    def __init__(self, network: DFlashNetwork, embed: Embed, head: DraftHead) -> None:
        super().__init__(network, embed, head)
        last: Any = network.embed_proj[2]
        self.project: Any = last if head.rows is None else gather_head(last, np.array(head.rows))

    def propose(self, hidden: mx.array, anchor: int, noise: mx.array | None) -> DraftBlock:
        """Slot by slot; ``hidden [k, D]``."""
        network: Any = self.network
        base, noise = self.scores(hidden), self.head.columns(noise)
        first, activate = network.embed_proj[0], network.embed_proj[1]
        token = mx.array(anchor)
        state = mx.zeros((self.config.extra["gru_hidden_dim"],), dtype=hidden.dtype)
        rows, tokens, scores = [], [], []
        for slot in range(hidden.shape[0]):
            state = network.prefix_gru.step(self.embed(token).astype(hidden.dtype), state)
            score = base[slot]
            if slot >= self.config.extra["pure_draft_prefix_len"]:
                squeezed = activate(first(mx.concatenate([hidden[slot], state])))
                score = score + self.project(squeezed).astype(mx.float32)
            row = choose(score[None], None if noise is None else noise[slot][None])[0]
            token = self.head.tokens(row)
            rows.append(row)
            tokens.append(token)
            scores.append(score)
        table = confidence(mx.stack(scores), mx.stack(rows), noise)
        return DraftBlock(mx.stack(tokens).astype(mx.int32), table)
