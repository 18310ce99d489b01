"""DFlash 2: DFlash with a two-tap block-local convolution around every sublayer, and a path selector over candidates.

Sources: the authors' release (architecture ``DFlash2DraftModel``); there is no paper. Shapes as in ``dflash``; ``G``
groups of channels, ``K`` candidates per slot, ``r`` the codebooks' rank.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.confidence import choose, confidence
from macspec_models.drafters.context import LayerBuffer
from macspec_models.drafters.dflash import DFlashConfig, DFlashNetwork, Layer, dtype_of
from macspec_models.drafters.interface import DraftBlock


class GroupedDynamicConvolution(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """Causal depthwise convolution inside the block, before and after a sublayer, with input-dependent kernels.

    ``out[i, c] = sum_t (base[t, c] + delta[i, t, g(c)]) * x[i - t, c]``; left of the anchor there is zero. One
    projection of the sublayer's normed input gives the deltas of both convolutions.
    """

    def __init__(self, width: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.group = taps, group
        self.base_kernel = mx.zeros((2, taps, width))
        self.kernel_projection = nn.Linear(width, 2 * taps * (width // group), bias=False)

    def kernels(self, normed: mx.array) -> tuple[mx.array, mx.array]:
        """Kernels ``[S, taps, width]`` of the convolution before and of the one after, for ``normed [1, S, width]``."""
        slots = normed.shape[1]
        deltas = self.kernel_projection(normed)[0].reshape(slots, 2, self.taps, -1, 1)
        base = self.base_kernel.reshape(2, self.taps, -1, self.group)
        whole = (base + deltas).reshape(slots, 2, self.taps, -1)
        return whole[:, 0], whole[:, 1]

    @staticmethod
    def convolve(x: mx.array, kernels: mx.array) -> mx.array:
        """``x [1, S, width]`` under ``kernels [S, taps, width]``."""
        out = kernels[:, 0] * x
        for tap in range(1, min(kernels.shape[1], x.shape[1])):
            shifted = mx.pad(x[:, :-tap], [(0, 0), (tap, 0), (0, 0)])
            out = out + kernels[:, tap] * shifted
        return out


class DFlash2Layer(Layer):
    """A DFlash layer between convolutions."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        taps, group = config.extra["conv_kernel_size"], config.extra["conv_group_size"]
        self.attention_conv = GroupedDynamicConvolution(config.hidden_size, taps, group)
        self.mlp_conv = GroupedDynamicConvolution(config.hidden_size, taps, group)

    def block(self, x: mx.array, offset: int, buffer: LayerBuffer, mask: mx.array | str | None) -> mx.array:
        """One block's float32 residual stream ``[1, S, D]`` through the layer."""
        dtype = dtype_of(self.self_attn.q_proj)
        normed = self.input_layernorm(x).astype(dtype)
        before, after = self.attention_conv.kernels(normed)
        inner = self.self_attn.block(self.attention_conv.convolve(normed, before), offset, buffer, mask)
        x = x + self.attention_conv.convolve(inner, after)
        normed = self.post_attention_layernorm(x).astype(dtype)
        before, after = self.mlp_conv.kernels(normed)
        return x + self.mlp_conv.convolve(self.mlp(self.mlp_conv.convolve(normed, before)), after)


class CandidateSelector(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """Scores a candidate after its predecessor: ``<A[predecessor] * (H h), B[candidate]>``."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        rank: int = config.extra["selector_rank"]
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self.predecessor_codebook = mx.zeros((config.vocab_size, rank))
        self.successor_codebook = mx.zeros((config.vocab_size, rank))


class DFlash2Network(DFlashNetwork):
    """The trainable part of a DFlash 2 drafter."""

    layer_class: type[Layer] = DFlash2Layer

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        self.candidate_selector = CandidateSelector(config)


class DFlash2Drafter(DFlashDrafter):
    """Keeps the best ``selector_top_k`` tokens of every slot and walks from the anchor to the best one each time.

    The walk is greedy at every temperature: the target's side alone decides what is sampled. Confidence is over the
    candidates of a slot, the distribution the walk chooses from.
    """

    kind = "dflash2"

    def propose(self, hidden: mx.array, anchor: int, noise: mx.array | None) -> DraftBlock:
        """Walk the path; ``hidden [k, D]``."""
        selector: Any = self.network.candidate_selector
        logits, noise = self.scores(hidden), self.head.columns(noise)
        count = min(self.config.extra["selector_top_k"], logits.shape[-1])
        rows = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
        unary = mx.take_along_axis(logits, rows, axis=-1)
        candidates = self.head.tokens(rows)
        noisy = None if noise is None else mx.take_along_axis(noise, rows, axis=-1)
        queries = selector.hidden_projection(hidden)
        successors = selector.successor_codebook[candidates]
        predecessor = mx.array(anchor)
        tokens, picks, scores = [], [], []
        for slot in range(hidden.shape[0]):
            query = selector.predecessor_codebook[predecessor] * queries[slot]
            score = unary[slot] + (successors[slot] @ query).astype(mx.float32)
            pick = choose(score[None], None if noisy is None else noisy[slot][None])
            predecessor = candidates[slot][pick[0]]
            tokens.append(predecessor)
            picks.append(pick)
            scores.append(score)
        chosen, table = mx.concatenate(picks), mx.stack(scores)
        return DraftBlock(mx.stack(tokens).astype(mx.int32), confidence(table, chosen, noisy))
