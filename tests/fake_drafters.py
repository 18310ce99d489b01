"""Drafters for tests: random, always right, always wrong. They read no features unless told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from macspec_models.drafters.interface import DraftBlock


class CountingContext:
    """A context that only counts positions, and so notices features that are missing or come twice."""

    def __init__(self, length: int = 0) -> None:
        self.length = length

    @property
    def nbytes(self) -> int:
        return 0

    def trim(self, length: int) -> None:
        self.length = min(self.length, length)

    def skip(self, count: int) -> None:
        self.length += count

    def fork(self) -> CountingContext:
        return CountingContext(self.length)

    def arrays(self) -> list[mx.array]:
        return []


class FakeDrafter:
    """Proposes what ``propose(history, count)`` says."""

    kind = "dflash"

    def __init__(
        self,
        propose: Callable[[Sequence[int], int], Sequence[int]],
        *,
        max_depth: int = 7,
        taps: tuple[int, ...] = (0,),
    ) -> None:
        self.propose, self.max_depth, self.taps = propose, max_depth, taps
        self.drafts = 0

    def new_context(self) -> CountingContext:
        return CountingContext()

    def extend(self, context: CountingContext, features: mx.array) -> None:
        context.length += features.shape[0]

    def draft(self, context, anchor, history, *, limit=None, noise=None) -> DraftBlock:
        assert history[-1] == anchor
        assert not self.taps or context.length == len(history) - 1, "the context must hold all but the anchor"
        count = min(self.max_depth, self.max_depth if limit is None else limit)
        tokens = list(self.propose(history, count))[:count]
        self.drafts += 1
        confidence = np.tile(np.float32([0.8, 2.0, 0.5]), (len(tokens), 1))
        return DraftBlock(mx.array(tokens, mx.int32).reshape(-1), mx.array(confidence.reshape(-1, 3)))


def random_drafter(vocab: int, seed: int = 0, **options) -> FakeDrafter:
    """Proposes uniformly random tokens: nearly everything is rejected."""
    rng = np.random.default_rng(seed)
    return FakeDrafter(lambda history, count: rng.integers(0, vocab, count).tolist(), **options)


def oracle_drafter(answer: Sequence[int], prompt_length: int, *, wrong_every: int = 0, **options) -> FakeDrafter:
    """Proposes the known answer; every ``wrong_every``-th token is replaced by a wrong one when that is not 0."""

    def propose(history: Sequence[int], count: int) -> list[int]:
        start = len(history) - prompt_length
        tokens = list(answer[start : start + count])
        for place in range(len(tokens)):
            if wrong_every and (start + place) % wrong_every == wrong_every - 1:
                tokens[place] += 1 if tokens[place] == 0 else -1
        return tokens

    return FakeDrafter(propose, **options)
