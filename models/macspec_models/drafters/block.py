"""DFlash as a drafter: one denoising pass per round, the target's own embedding and head (arXiv 2602.06036, section 4).

The other block drafters (DFlash 2, DSpark, Domino) share everything here but how hidden states become tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

from macspec_models.drafters.confidence import Reading, choose, confidence, read
from macspec_models.drafters.context import BlockContext
from macspec_models.drafters.dflash import DFlashNetwork
from macspec_models.drafters.head import DraftHead
from macspec_models.drafters.interface import DraftBlock, DraftContext, Embed

#: The target's keyed noise for ``(first position, rows)``: ``[rows, vocab]``.
Noise = Callable[[int, int], mx.array]


class DFlashDrafter:
    """A DFlash (v1) drafter at work.

    Args:
        network: its weights, with the configuration.
        embed: the target's embedding; must give the drafter's width.
        head: the target's head, whole or reduced to some rows.
    """

    kind = "dflash"

    def __init__(self, network: DFlashNetwork, embed: Embed, head: DraftHead) -> None:
        self.network, self.config = network, network.config
        self.embed, self.head = embed, head
        #: Where it was loaded from; files trained for it may lie there.
        self.folder: Path | None = None
        #: Committed positions a layer looks back on at most, where its checkpoint says no fewer; None: all of them.
        self.lookback: int | None = None
        #: Makes ``DraftBlock.features`` of hidden states and scores; set by whoever reads them.
        self.feature_map: Callable[[mx.array, mx.array], mx.array] | None = None
        #: How scores without noise are read; set by whoever has a faster way to the same values.
        self.reading: Reading = read

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs it reads, ascending."""
        return self.config.target_layer_ids

    @property
    def max_depth(self) -> int:
        """Most draft tokens one block gives."""
        return self.config.max_depth

    @property
    def nbytes(self) -> int:
        """Bytes of weights, a reduced head's gathered rows included."""
        weights: list[tuple[str, mx.array]] = tree_flatten(self.network.parameters())
        return sum(array.nbytes for _, array in weights) + self.head.nbytes

    def new_context(self) -> BlockContext:
        """An empty context."""
        windows = [self.config.window(layer) for layer in range(self.config.num_hidden_layers)]
        if self.lookback is not None:
            # A window counts the slot's own position.
            windows = [min(window or self.lookback + 1, self.lookback + 1) for window in windows]
        return BlockContext(windows)

    def extend(self, context: DraftContext, features: mx.array) -> None:
        """Append committed positions: ``features [n, taps * target width]``, taps concatenated in ascending order."""
        if features.shape[0]:
            held = cast(BlockContext, context)
            held.append(self.network.context(features[None], held.length))

    def draft(
        self,
        context: DraftContext,
        anchor: int,
        history: Sequence[int],
        *,
        limit: int | None = None,
        noise: Noise | None = None,
    ) -> DraftBlock:
        """Propose what follows ``anchor``; see ``Drafter.draft``.

        Only the slots of use are computed: a block shorter than the trained one is sound (paper table 8).
        """
        count = self.max_depth if limit is None else max(0, min(limit, self.max_depth))
        if count == 0:
            return DraftBlock(mx.zeros((0,), mx.int32), mx.zeros((0, 3)))
        hidden = self.hidden(cast(BlockContext, context), anchor, count)
        # Slot k proposes the token at its own position; with an anchor that predicts too, the one after.
        return self.propose(hidden, anchor, None if noise is None else noise(context.length + 1, count))

    def hidden(self, context: BlockContext, anchor: int, count: int) -> mx.array:
        """Hidden states ``[count, D]`` of the slots that give the ``count`` draft tokens, first one first."""
        config = self.config
        masks = count - 1 if config.sample_from_anchor else count
        block = self.embed(mx.array([[anchor] + [config.mask_token_id] * masks]))
        if config.input_embedding_scale != 1.0:
            block = block * config.input_embedding_scale
        return self.network(block, context)[0, -count:]

    def scores(self, hidden: mx.array) -> mx.array:
        """Float32 logits ``[k, head rows]`` of hidden states ``[k, D]``, on the target's logit scale."""
        config = self.config
        scores = self.head(hidden).astype(mx.float32)
        if config.output_multiplier != 1.0:
            scores = scores * config.output_multiplier
        if config.final_logit_softcapping:
            scores = mx.tanh(scores / config.final_logit_softcapping) * config.final_logit_softcapping
        return scores

    def propose(self, hidden: mx.array, anchor: int, noise: mx.array | None) -> DraftBlock:
        """Turn hidden states ``[k, D]`` into draft tokens; ``noise [k, vocab]`` couples them to the target's choice."""
        scores, noise = self.scores(hidden), self.head.columns(noise)
        if noise is None:
            rows, table = self.reading(scores)
        else:
            rows = choose(scores, noise)
            table = confidence(scores, rows, noise)
        features = None if self.feature_map is None else self.feature_map(hidden, scores)
        return DraftBlock(self.head.tokens(rows), table, features=features)
