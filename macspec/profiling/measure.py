"""Measures a cost ladder on the device: every row count at several context lengths, the draft, replay and overhead.

Each pass takes its tokens from the result of the one before it (a dependent chain, as decoding is), and ends with the
choices on the host, as a round does. Row counts and contexts are shuffled anew in every sweep, so that a machine that
warms up or is disturbed lifts all of them alike instead of bending the curve. The first pass of every shape is thrown
away, medians are kept.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from macspec.engine.caches import TargetCache
from macspec.errors import ModelLoadError
from macspec.profiling.contexts import filled, filled_context
from macspec.scheduler.ladder import Ladder
from macspec_models.drafters.interface import DraftContext, Drafter
from macspec_models.target import Target

#: Context lengths of interest; those a model cannot hold are left out or shortened.
CONTEXTS = (128, 1024, 4096)
#: Sweeps over all shapes; the time budget counts after ``LEAST`` of them, for longer contexts after one.
REPEATS, LEAST = 5, 3
BUDGET_S = 4.0

#: Called with the passes done and those in all.
Progress = Callable[[int, int], None]
Clock = Callable[[], float]


@dataclass
class _Bed:
    """Caches of one length to measure on."""

    length: int
    cache: TargetCache
    context: DraftContext | None
    features: mx.array | None


class Meter:
    """One measurement of a pair.

    Args:
        contexts: cached tokens to measure at, ascending.
        clock: seconds; tests pass their own.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        contexts: tuple[int, ...] = CONTEXTS,
        repeats: int = REPEATS,
        budget_s: float = BUDGET_S,
        progress: Progress | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.target, self.drafter = target, drafter
        self.rows = drafter.max_depth + 1
        self.contexts = fitting(contexts, target.max_context, self.rows)
        self.repeats, self.budget_s = repeats, budget_s
        self._report = progress or (lambda done, total: None)
        self._clock = clock
        self._anchor = 1

    def ladder(self, name: str = "measured") -> Ladder:
        """Measure. Takes about ``budget_s``, longer where even the least number of passes does."""
        begin = self._clock()
        count = len(self.contexts)
        total = (self.repeats * count + 1) * self.rows
        beds = [self._bed(length) for length in self.contexts]
        # Compiling a kernel or loading a library happens at the first pass of a row count.
        for rows in range(1, self.rows + 1):
            self._verify(beds[0], rows)
            self._report(rows, total)
        for bed in beds:
            self._draft(bed)
        verify: list[list[list[float]]] = [[[] for _ in range(self.rows)] for _ in beds]
        draft: list[list[float]] = [[] for _ in beds]
        order = random.Random(0)
        done = self.rows
        for sweep in range(self.repeats):
            spent = self._clock() - begin
            late = spent * (sweep + 1) > self.budget_s * max(1, sweep)
            if late and sweep >= LEAST:
                break
            # A slow machine measures a few row counts at longer contexts once, and then only the first context again.
            used = [0] if late and sweep else range(count)
            everywhere = range(1, self.rows + 1)
            few = sorted({1, (self.rows + 1) // 2, self.rows})
            shapes = [(number, rows) for number in used for rows in (everywhere if number == 0 or sweep else few)]
            order.shuffle(shapes)
            for number, rows in shapes:
                verify[number][rows - 1].append(self._verify(beds[number], rows))
                done += 1
                self._report(done, total)
            for number in used:
                draft[number].append(self._draft(beds[number]))
        self._report(total, total)
        medians = [
            {rows: statistics.median(samples) for rows, samples in enumerate(times, 1) if samples} for times in verify
        ]
        first = list(medians[0].values())
        curves = [
            lifted(first, found) if min(map(len, times)) < LEAST and number else list(found.values())
            for number, (found, times) in enumerate(zip(medians, verify, strict=True))
        ]
        return Ladder(
            contexts=self.contexts,
            verify=tuple(tuple(curve) for curve in curves),
            draft=tuple(statistics.median(times) for times in draft),
            replay=self._replays(beds[0]),
            name=name,
            notes={
                "repeats": [min(map(len, times)) for times in verify],
                "seconds": round(self._clock() - begin, 2),
            },
        )

    def _bed(self, length: int) -> _Bed:
        cache, features = filled(self.target, length)
        context = None if features is None else filled_context(self.drafter, features, length)
        return _Bed(length, cache, context if context is not None else self.drafter.new_context(), features)

    def _verify(self, bed: _Bed, rows: int) -> float:
        """Milliseconds of one pass of ``rows`` rows, choices on the host included."""
        tokens = [self._anchor] * rows
        bed.cache.begin(rows)
        begin = self._clock()
        logits = self.target.forward(mx.array([tokens]), bed.cache.layers)[0]
        choices = np.array(mx.argmax(logits, axis=-1))
        elapsed = 1000.0 * (self._clock() - begin)
        bed.cache.commit(0)
        self._anchor = int(choices[-1])
        return elapsed

    def _draft(self, bed: _Bed) -> float:
        """Milliseconds of taking in a round's features and drafting a block, confidences on the host included."""
        context = bed.context
        assert context is not None
        length = context.length
        new = None if bed.features is None else bed.features[:2]
        history = unrepeated(length + (0 if new is None else new.shape[0]), self.target.vocab_size, self._anchor)
        begin = self._clock()
        if new is not None:
            self.drafter.extend(context, new)
        block = self.drafter.draft(context, self._anchor, history)
        both = np.array(mx.concatenate([block.tokens.astype(mx.float32)[:, None], block.confidence], axis=1))
        elapsed = 1000.0 * (self._clock() - begin)
        if len(both):
            self._anchor = int(both[0, 0])
        context.trim(length)
        return elapsed

    def _replays(self, bed: _Bed) -> tuple[float, ...]:
        """Milliseconds of keeping ``a`` accepted tokens of a full block, for caches that must run them again."""
        if not bed.cache.recurrent:
            return ()
        rows = mx.array([[self._anchor] * self.rows])
        times = []
        for accepted in range(self.rows - 1):
            samples = [self._replay(bed.cache.fork(), rows, accepted + 1) for _ in range(LEAST)]
            times.append(statistics.median(samples))
        return tuple(times)

    def _replay(self, cache: TargetCache, rows: mx.array, kept: int) -> float:
        def again(count: int) -> None:
            self.target.forward(rows[:, :count], cache.layers)

        cache.begin(self.rows)
        mx.eval(self.target.forward(rows, cache.layers))
        begin = self._clock()
        cache.commit(kept, again)
        mx.eval(cache.arrays())
        return 1000.0 * (self._clock() - begin)


def unrepeated(count: int, vocab: int, anchor: int) -> list[int]:
    """``count`` random token ids and the anchor: a prompt lookup finds nothing in them, so the model has to draft."""
    return [*random.Random(0).choices(range(vocab), k=count), anchor]


def lifted(base: Sequence[float], few: Mapping[int, float]) -> list[float]:
    """``base`` plus the straight line in rows that fits how much higher ``few``, noisy times by row count, lie.

    More cached tokens cost every row its attention and every pass a read of the cache, and nothing else.
    """
    rows = np.array(list(few))
    higher = np.array(list(few.values())) - np.asarray(base)[rows - 1]
    slope = max(0.0, float(np.polyfit(rows, higher, 1)[0]))
    offset = max(-slope, float(higher.mean()) - slope * float(rows.mean()))
    return [ms + max(0.0, offset + slope * row) for row, ms in enumerate(base, 1)]


def fitting(contexts: tuple[int, ...], most: int, rows: int) -> tuple[int, ...]:
    """At least three context lengths a model can hold with ``rows`` rows more, as near to ``contexts`` as it goes.

    Raises:
        ModelLoadError: the model's context is too short to measure anything.
    """
    room = most - 2 * rows - 2
    if room < 8:
        raise ModelLoadError(
            f"A context of {most} tokens is too short to verify blocks of {rows} rows; use plain decoding."
        )
    if contexts[-1] <= room:
        return contexts
    return (max(1, room // 16), max(2, room // 4), room)
