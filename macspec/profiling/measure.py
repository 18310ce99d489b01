"""Measures a cost ladder on the device: every row count at several context lengths, the draft, replay and overhead.

Each pass takes its tokens from the result of the one before it (a dependent chain, as decoding is), and ends with the
choices on the host, as a round does. Row counts and contexts are shuffled anew in every sweep, so that a machine that
warms up or is disturbed lifts all of them alike instead of bending the curve. Medians are kept.

All of it fits a budget of time. Every row count gets two passes at the first context in any case; what time is left
goes to a few row counts at longer contexts, then to sweeps of all, in which row counts whose times agree are left out.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from macspec.engine.caches import TargetCache
from macspec.errors import ModelLoadError
from macspec.profiling.contexts import SEED_ROWS, filled, filled_context
from macspec.scheduler.ladder import Ladder
from macspec_models.drafters.interface import DraftContext, Drafter
from macspec_models.target import Target

#: Context lengths of interest; those a model cannot hold are left out or shortened.
CONTEXTS = (128, 1024, 4096)
#: Sweeps over all shapes, at most.
REPEATS = 5
#: Seconds; passes are only begun that are expected to end within them.
BUDGET_S = 4.2
#: Passes of which a median is trusted alone; with fewer, a longer context's curve is a line over the first one's.
LEAST = 3
#: A row count is settled when so many passes lie within this share of their median.
SETTLED_PASSES, SETTLED = 3, 0.02
#: The first pass of a shape counts unless it took this many times as long as the second: it compiled a kernel.
COMPILED = 1.25

#: Called with the passes done and those in all.
Progress = Callable[[int, int], None]
Clock = Callable[[], float]


@dataclass
class _Bed:
    """Caches of one length to measure on, and the times so far: per row count, and of drafts."""

    length: int
    cache: TargetCache
    context: DraftContext
    features: mx.array | None
    verify: list[list[float]]
    draft: list[float] = field(default_factory=list)


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
        """Measure. Takes about ``budget_s``, longer where two passes of every row count do."""
        begin = self._clock()
        beds = self._beds()
        done, total = 0, (self.repeats * len(beds) + 1) * self.rows
        order = random.Random(0)
        for sweep in range(self.repeats + 1):
            shapes = self._shapes(beds, sweep, self.budget_s - (self._clock() - begin))
            if not shapes:
                break
            if sweep:
                order.shuffle(shapes)
            for bed, rows in shapes:
                bed.verify[rows - 1].append(self._verify(bed, rows))
                done += 1
                self._report(done, total)
            for bed in beds:
                if not sweep or any(bed is used for used, _ in shapes):
                    bed.draft.append(self._draft(bed))
        self._report(total, total)
        samples = [{rows: counted(times) for rows, times in enumerate(bed.verify, 1) if times} for bed in beds]
        medians = [{rows: statistics.median(times) for rows, times in found.items()} for found in samples]
        repeats = [min(len(found.get(rows, ())) for rows in range(1, self.rows + 1)) for found in samples]
        first = list(medians[0].values())
        curves = [
            lifted(first, found) if number and least < LEAST else list(found.values())
            for number, (found, least) in enumerate(zip(medians, repeats, strict=True))
        ]
        return Ladder(
            contexts=self.contexts,
            verify=tuple(tuple(curve) for curve in curves),
            draft=tuple(statistics.median(counted(bed.draft)) for bed in beds),
            replay=self._replays(beds[0], begin + self.budget_s),
            name=name,
            notes={"repeats": repeats, "seconds": round(self._clock() - begin, 2)},
        )

    def _shapes(self, beds: Sequence[_Bed], sweep: int, left_s: float) -> list[tuple[_Bed, int]]:
        """What to measure in a sweep, given the seconds left; empty when it is enough."""
        first, *longer = beds
        everywhere = range(1, self.rows + 1)
        base = [(first, rows) for rows in everywhere]
        if sweep == 0:
            return base
        if sweep == 1:
            few = [(bed, rows) for bed in longer for rows in sorted({1, (self.rows + 1) // 2, self.rows})]
            ends = [(bed, rows) for bed, rows in few if rows in (1, self.rows)]
            return base + (few if _seconds(base + few) <= left_s else ends)
        rest = [[(bed, rows) for rows in everywhere if not _settled(bed.verify[rows - 1])] for bed in beds]
        for choice in ([shape for shapes in rest for shape in shapes], rest[0]):
            if _seconds(choice) <= left_s:
                return choice
        return []

    def _beds(self) -> list[_Bed]:
        seed = filled(self.target, SEED_ROWS)
        beds = []
        for length in self.contexts:
            cache, features = filled(self.target, length, seed)
            context = self.drafter.new_context() if features is None else filled_context(self.drafter, features, length)
            beds.append(_Bed(length, cache, context, features, [[] for _ in range(self.rows)]))
        return beds

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

    def _replays(self, bed: _Bed, until: float) -> tuple[float, ...]:
        """Milliseconds of keeping ``a`` accepted tokens of a full block, for caches that must run them again.

        Each is measured once at least, again while it is not yet ``until``.
        """
        if not bed.cache.recurrent:
            return ()
        rows = mx.array([[self._anchor] * self.rows])
        times: list[list[float]] = [[] for _ in range(self.rows - 1)]
        for again in range(LEAST):
            for accepted, samples in enumerate(times):
                if not again or self._clock() < until:
                    samples.append(self._replay(bed.cache.fork(), rows, accepted + 1))
        return tuple(statistics.median(samples) for samples in times)

    def _replay(self, cache: TargetCache, rows: mx.array, kept: int) -> float:
        def again(count: int) -> None:
            self.target.forward(rows[:, :count], cache.layers)

        cache.begin(self.rows)
        mx.eval(self.target.forward(rows, cache.layers))
        begin = self._clock()
        cache.commit(kept, again)
        mx.eval(cache.arrays())
        return 1000.0 * (self._clock() - begin)


def counted(times: Sequence[float]) -> list[float]:
    """The times without the first where a kernel was compiled in it."""
    compiled = len(times) > 1 and times[0] > COMPILED * times[1]
    return list(times[1:] if compiled else times)


def _settled(times: Sequence[float]) -> bool:
    """Whether more passes would hardly move the median."""
    kept = counted(times)
    return len(kept) >= SETTLED_PASSES and max(kept) - min(kept) <= SETTLED * statistics.median(kept)


def _seconds(shapes: Sequence[tuple[_Bed, int]]) -> float:
    """How long passes and their drafts will take: as the last of the shape, or twice the longest of the others."""
    known = [bed.verify[rows - 1][-1] for bed, rows in shapes if bed.verify[rows - 1]]
    drafts = {bed.length: bed.draft[-1] for bed, _ in shapes}
    return (sum(known) + 2.0 * (len(shapes) - len(known)) * max(known, default=0.0) + sum(drafts.values())) / 1000.0


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
