"""A prefill and a decode loop around the prefix cache, over the toy model: what an engine does with them, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from toy_model import ToyModel

# isort: split
import mlx.core as mx

from macspec.engine.caches import TargetCache
from macspec.engine.prefix_cache import PrefixCache, Reuse


class CountingContext:
    """A drafter's context that remembers which positions it saw."""

    def __init__(self, seen: Sequence[int] = ()) -> None:
        self.seen = list(seen)

    @property
    def length(self) -> int:
        return len(self.seen)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.seen)

    def trim(self, length: int) -> None:
        del self.seen[length:]

    def skip(self, count: int) -> None:
        self.seen += [-1] * count

    def fork(self) -> CountingContext:
        return CountingContext(self.seen)

    def arrays(self) -> list[mx.array]:
        return []


class Chat:
    """A prefill and a decode loop around the prefix cache, as an engine has them."""

    def __init__(self, kinds: Sequence[str], budget: int = 10**9, disk: Any = None, contexts: bool = True) -> None:
        self.model = ToyModel(kinds)
        self.prefixes = PrefixCache(budget, self.new_cache, CountingContext if contexts else None, disk)
        self.read = 0

    def new_cache(self) -> TargetCache:
        return TargetCache(self.model.make_cache())

    def prefill(self, reuse: Reuse, tokens: Sequence[int], until: int | None = None, chunk: int = 7) -> None:
        end = len(tokens) - 1 if until is None else until
        self.read = 0
        while (at := reuse.cache.length) < end:
            stop = min([at + chunk, end, *(stop for stop in reuse.stops if stop > at)])
            rows = list(tokens[at:stop])
            with reuse.cache.append(len(rows)):
                mx.eval(self.model.forward(mx.array([rows]), reuse.cache.layers))
            if reuse.context is not None:
                reuse.context.seen += rows
            self.read += len(rows)
            if reuse.cache.length in reuse.stops:
                reuse.marks.append(reuse.cache.checkpoint())

    def ask(self, prompt: Sequence[int], answer: Sequence[int], boundary: int | None = None) -> Reuse:
        """One request; returns what it started from. The caches are compared with a fresh prefill on the way."""
        reuse = self.prefixes.take(prompt, lambda: boundary)
        self.check(reuse, prompt, reuse.cached)
        self.prefill(reuse, prompt)
        tokens = [*prompt, *answer]
        self.prefill_read, read = self.read, Reuse(reuse.cache, reuse.context, 0)
        self.prefill(read, tokens)
        self.check(reuse, tokens, len(tokens) - 1)
        self.prefixes.put(tokens, reuse.cache, reuse.context, reuse.marks)
        return reuse

    def check(self, reuse: Reuse, tokens: Sequence[int], length: int) -> None:
        reuse.cache.check()
        assert reuse.cache.length == length
        probe = [5, 6, 7]
        got = self.model.forward(mx.array([probe]), reuse.cache.fork().layers)
        plain = self.model.forward(mx.array([[*tokens[:length], *probe]]), self.model.make_cache())[length:]
        np.testing.assert_array_equal(np.array(got), np.array(plain))
        if reuse.context is not None:
            assert len(reuse.context.seen) == length
            assert all(seen in (-1, token) for seen, token in zip(reuse.context.seen, tokens, strict=False))


def numbers(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 100, count).tolist()
