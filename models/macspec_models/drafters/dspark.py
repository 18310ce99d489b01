"""DSpark (arXiv 2607.05147): DFlash whose slots also see the token before them, and say how likely they are accepted.

The anchor's slot predicts too. Logits of slot k gain ``W2 f(W1[x_{k-1}])`` (section 3.2, the Markov head); the
confidence head gives ``c_k = sigmoid(w [h_k ; W1[x_{k-1}]])`` (section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.confidence import choose, confidence
from macspec_models.drafters.dflash import DFlashConfig, DFlashNetwork, dtype_of
from macspec_models.drafters.head import DraftHead, gather_head
from macspec_models.drafters.interface import DraftBlock, Embed


class MarkovHead(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """A low-rank bias on the logits from the token before: plain, gated by the hidden state, or recurrent."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        rank, self.form = int(config.extra["markov_rank"]), str(config.extra["markov_head_type"])
        self.rank = rank
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.vocab_size, bias=False)
        if self.form == "gated":
            self.gate_proj = nn.Linear(config.hidden_size + rank, rank)
        elif self.form == "rnn":
            self.joint_proj = nn.Linear(2 * rank + config.hidden_size, 3 * rank)

    def latent(self, before: mx.array, hidden: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """What ``markov_w2`` projects, and the next state.

        Args:
            before: ``W1`` of the token before, ``[rank]``.
            hidden: hidden state of the slot ``[D]``.
            state: recurrent state ``[rank]``, zero for the first slot; unused by the other forms.
        """
        if self.form == "gated":
            gate = mx.sigmoid(self.gate_proj(mx.concatenate([hidden, before])))
            return gate * before, state
        if self.form == "rnn":
            gate, candidate, output = mx.split(self.joint_proj(mx.concatenate([state, before, hidden])), 3)
            gate = mx.sigmoid(gate)
            return mx.tanh(output), gate * state + (1 - gate) * mx.tanh(candidate)
        return before, state


class ConfidenceHead(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """A linear layer that may have a bias; the published ones come both ways."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        extra = int(config.extra["markov_rank"]) if config.extra["confidence_head_with_markov"] else 0
        self.proj = nn.Linear(config.hidden_size + extra, 1, bias=config.extra.get("confidence_bias", True))


class DSparkNetwork(DFlashNetwork):
    """The trainable part of a DSpark drafter."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        if config.extra["markov_rank"]:
            self.markov_head = MarkovHead(config)
        if config.extra["enable_confidence_head"]:
            self.confidence_head = ConfidenceHead(config)


class DSparkDrafter(DFlashDrafter):
    """DSpark at work.

    With a confidence head, its value is what ``DraftBlock.confidence`` reports as the probability.
    ``temperatures`` divides its logit slot by slot (the paper's sequential temperature scaling, section 3.4).
    """

    kind = "dspark"

    def __init__(self, network: DFlashNetwork, embed: Embed, head: DraftHead) -> None:
        super().__init__(network, embed, head)
        given: tuple[float, ...] = network.config.extra["confidence_temperatures"]
        self.temperatures: Sequence[float] = given or (1.0,) * self.max_depth
        self.markov = cast("MarkovHead | None", network.markov_head if "markov_head" in network else None)
        self.project: Any = None
        if self.markov is not None:
            second = self.markov.markov_w2
            self.project = second if head.rows is None else gather_head(second, np.array(head.rows))

    def propose(self, hidden: mx.array, anchor: int, noise: mx.array | None) -> DraftBlock:
        """Slot by slot; ``hidden [k, D]``."""
        scores, noise = self.scores(hidden), self.head.columns(noise)
        if self.markov is None:
            rows = choose(scores, noise)
            tokens, before = self.head.tokens(rows), None
        else:
            rows, tokens, scores, before = self._walk(self.markov, hidden, anchor, scores, noise)
        table = confidence(scores, rows, noise)
        if "confidence_head" in self.network:
            sure = self._sure(hidden, before)
            table = mx.concatenate([sure[:, None], table[:, 1:]], axis=-1)
        return DraftBlock(tokens, table)

    def _walk(
        self, markov: MarkovHead, hidden: mx.array, anchor: int, base: mx.array, noise: mx.array | None
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Head rows and tokens ``[k]``, corrected scores ``[k, rows]``, ``W1`` of the tokens before ``[k, rank]``."""
        token = mx.array(anchor)
        state = mx.zeros((markov.rank,), dtype=hidden.dtype)
        rows, tokens, scores, embedded = [], [], [], []
        for slot in range(hidden.shape[0]):
            before = markov.markov_w1(token)
            latent, state = markov.latent(before, hidden[slot], state)
            score = base[slot] + self.project(latent).astype(mx.float32)
            row = choose(score[None], None if noise is None else noise[slot][None])[0]
            token = self.head.tokens(row)
            rows.append(row)
            tokens.append(token)
            scores.append(score)
            embedded.append(before)
        return mx.stack(rows), mx.stack(tokens).astype(mx.int32), mx.stack(scores), mx.stack(embedded)

    def _sure(self, hidden: mx.array, before: mx.array | None) -> mx.array:
        """The confidence head's probability per slot, float32 ``[k]``."""
        features = hidden
        if self.config.extra["confidence_head_with_markov"] and before is not None:
            features = mx.concatenate([hidden, before.astype(hidden.dtype)], axis=-1)
        proj: Any = self.network.confidence_head.proj
        logit = proj(features.astype(dtype_of(proj)))[:, 0].astype(mx.float32)
        return mx.sigmoid(logit / mx.array(list(self.temperatures)[: hidden.shape[0]]))
