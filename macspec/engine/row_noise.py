"""How much a row's logits depend on the number of rows in its pass: measured on the loaded target, as it runs.

Libraries choose other kernels, and so other orders of summation, for one row than for several. Two things follow for a
round that verifies several rows: their logits differ in the last bits from those of one-row passes, and so do the keys
and values they leave behind, on which every later row builds. The measurement covers both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from macspec.engine.caches import TargetCache
from macspec.engine.noise import keyed_gumbel
from macspec_models.target import Target

#: The bound is the largest difference seen times this: other texts will show larger ones.
SAFETY = 2.0
#: Positions compared after a short context, where passes of all row counts follow each other.
ROWS = 64
START = 16
#: A context in which MLX's attention on a GPU splits the keys; on a CPU nothing changes with the context.
LONG, LONG_ON_CPU = 1100, 200
#: Tokens the expected share of near-ties weighs against what answers really showed.
PRIOR_TOKENS = 256


@dataclass
class RowNoise:
    """What the measurement found, and what answers have shown since.

    Attributes:
        largest: largest absolute difference of a logit from the one of a one-row pass; 0 when every bit is the same.
        compared: logits rows compared.
        max_rows: passes of 2 up to so many rows were tried.
        density: share of greedy choices per unit of lead over the second-best token, near zero.
        tokens, near_ties: tokens chosen in passes of several rows, and those decided again.
    """

    largest: float
    compared: int
    max_rows: int
    density: float
    tokens: int = 0
    near_ties: int = 0

    @property
    def same_bits(self) -> bool:
        """Whether a row had the same bits in every pass, keys and values included."""
        return self.largest == 0.0

    @property
    def bound(self) -> float:
        """Most that a logit is taken to differ from the one of plain decoding."""
        return SAFETY * self.largest

    @property
    def rate(self) -> float:
        """Expected near-ties per token: choices whose lead two logits off by `bound` could turn."""
        expected = PRIOR_TOKENS * min(1.0, 2.0 * self.bound * self.density)
        return (self.near_ties + expected) / (self.tokens + PRIOR_TOKENS)

    def observe(self, difference: float) -> None:
        """A difference seen in use; the bound only grows."""
        self.largest = max(self.largest, difference)


def measure(
    target: Target, new_cache: Callable[[], TargetCache], max_rows: int, chunk: int = 512, rows: int = ROWS
) -> RowNoise:
    """Compare passes of 2 to ``max_rows`` rows with one-row passes over the same tokens.

    The tokens are drawn from the target itself. After a short context one sequence of passes of every row count is
    compared, each building on what the earlier ones left, ``rows`` in all; after a long one every row count by itself.
    """
    seen = _Seen()
    _continued(target, new_cache(), max_rows, rows, seen)
    context = min(LONG_ON_CPU if mx.default_device() == mx.cpu else LONG, target.max_context - max_rows)
    if context > ROWS + START:
        _alone(target, new_cache(), max_rows, context, chunk, seen)
    return RowNoise(seen.largest, seen.compared, max_rows, seen.density())


class _Seen:
    """Adds up what comparisons show."""

    def __init__(self) -> None:
        self.largest, self.compared = 0.0, 0
        self._leads: list[float] = []

    def add(self, found: mx.array, expected: mx.array) -> None:
        """Logits ``[rows, vocab]`` of a pass and of one-row passes."""
        self.largest = max(self.largest, largest_difference(found, expected))
        self.compared += found.shape[0]

    def lead(self, logits: mx.array) -> None:
        """Logits ``[1, vocab]`` of a one-row pass."""
        best = np.sort(np.array(mx.topk(logits[0].astype(mx.float32), 2)))
        self._leads.append(float(best[1] - best[0]))

    def density(self) -> float:
        """From the smaller quarter of the leads, which is where the density is that counts."""
        quarter = float(np.quantile(self._leads, 0.25))
        return 0.25 / max(quarter, 1e-6)


def largest_difference(left: mx.array, right: mx.array) -> float:
    """The largest absolute difference of two arrays of logits; equal infinities do not differ."""
    left, right = left.astype(mx.float32), right.astype(mx.float32)
    return float(np.array(mx.max(mx.where(left == right, 0.0, mx.abs(left - right)))))


def _continued(target: Target, cache: TargetCache, max_rows: int, total: int, seen: _Seen) -> None:
    last = _prefill(target, cache, min(START, target.max_context // 2), START)
    start = cache.checkpoint()
    tokens, singles = _singles(target, cache, last, min(total, target.max_context - cache.length), seen)
    plain = _held(cache)
    cache.restore(start)
    begin, widths = 0, _widths(max_rows)
    while begin < len(tokens):
        rows = min(next(widths), len(tokens) - begin)
        with cache.append(rows):
            logits = target.forward(mx.array([tokens[begin : begin + rows]]), cache.layers)[0]
        mx.eval(cache.arrays())
        seen.add(logits, mx.concatenate(singles[begin : begin + rows]))
        begin += rows
    pairs = zip(plain, _held(cache), strict=True)
    if seen.largest == 0.0 and not all(mx.array_equal(left, right).item() for left, right in pairs):
        # The logits came out alike this time, but later rows will read keys and values that did not.
        seen.largest = float(np.finfo(np.float32).eps)


def _alone(target: Target, cache: TargetCache, max_rows: int, context: int, chunk: int, seen: _Seen) -> None:
    last = _prefill(target, cache, context, chunk)
    start = cache.checkpoint()
    tokens, singles = _singles(target, cache, last, max_rows, seen)
    cache.restore(start)
    for rows in range(2, max_rows + 1):
        cache.begin(rows)
        logits = target.forward(mx.array([tokens[:rows]]), cache.layers)[0]
        seen.add(logits, mx.concatenate(singles[:rows]))
        cache.rollback()


def _widths(max_rows: int) -> Iterator[int]:
    """Every row count from 2 up, narrow and wide ones in turn, again and again."""
    while True:
        for step in range(max_rows - 1):
            yield 2 + step // 2 if step % 2 else max_rows - step // 2


def _prefill(target: Target, cache: TargetCache, length: int, chunk: int) -> mx.array:
    """Take in ``length`` pseudo-random tokens; logits ``[1, vocab]`` of the last."""
    tokens = np.random.default_rng(0).integers(0, target.vocab_size, length).tolist()
    for begin in range(0, length, chunk):
        rows = tokens[begin : begin + chunk]
        with cache.append(len(rows)):
            logits = target.forward(mx.array([rows]), cache.layers)[0, -1:]
        mx.eval(logits, cache.arrays())
    return logits


def _singles(
    target: Target, cache: TargetCache, last: mx.array, count: int, seen: _Seen
) -> tuple[list[int], list[mx.array]]:
    """Draw ``count`` tokens from the target, one pass each: the tokens, and the logits ``[1, vocab]`` after each."""
    tokens: list[int] = []
    found: list[mx.array] = []
    for position in range(count):
        noise = keyed_gumbel(0, position, 1, last.shape[-1])
        tokens.append(int(np.array(mx.argmax(last.astype(mx.float32) + noise))))
        with cache.append(1):
            last = target.forward(mx.array([tokens[-1:]]), cache.layers)[0]
        mx.eval(last, cache.arrays())
        seen.lead(last)
        found.append(last)
    return tokens, found


def _held(cache: TargetCache) -> list[mx.array]:
    """Copies of what the caches hold, spare rows left out."""
    held = [part for leaf in cache.export() for part in leaf if isinstance(part, mx.array)]
    mx.eval(held)
    return held
