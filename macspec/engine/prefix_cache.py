"""Keeps the caches of finished, cancelled and failed requests, so that the next one does not read its prompt again.

Use, once per request::

    reuse = prefixes.take(tokens, boundary)         # reuse.cache holds the first reuse.cached of them
    ... prefill from reuse.cached on; at each length in reuse.stops: reuse.marks.append(reuse.cache.checkpoint())
    ... decode
    prefixes.put(committed_tokens, reuse.cache, reuse.context, reuse.marks)   # always, also after a cancel

The caller owns what `take` returned until it gives it to `put`; a request that never gives it back costs the prefix and
nothing else. The longest common prefix counts. Full attention caches are cut to any length; recurrent states and
windows only go back to a *mark* (a checkpoint taken while their rows were read), so `take` says where marks are worth
having: at ``boundary``, the end of what the next turn will surely repeat, and where an earlier prompt parted from this
one. Bytes are counted before anything is kept: the budget is never exceeded, the least recently used entry goes first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from macspec.engine.caches import Checkpoint, TargetCache
from macspec_models.drafters.interface import DraftContext

log = logging.getLogger(__name__)

#: Marks kept per entry: the first (often the end of a shared system prompt) and the newest.
MAX_MARKS = 4
#: A parting this close to the reused part or the boundary gets no mark: a pass of its own costs more than it saves.
MIN_STOP = 16

Tokens = NDArray[np.int32]


@dataclass
class Reuse:
    """What a request starts from. ``cache`` holds ``tokens[:cached]``; ``context`` is at the same length."""

    cache: TargetCache
    context: DraftContext | None
    cached: int
    #: Lengths, ascending, above ``cached``, at which prefill should end a chunk and append ``cache.checkpoint()``.
    stops: tuple[int, ...] = ()
    marks: list[Checkpoint] = field(default_factory=list)


@dataclass(eq=False)
class Entry:
    """One kept sequence: ``cache`` holds exactly ``tokens``."""

    tokens: Tokens
    cache: TargetCache
    context: DraftContext | None
    marks: list[Checkpoint]
    nbytes: int = 0

    def measure(self) -> None:
        """Count the bytes again."""
        self.nbytes = self.cache.nbytes + sum(mark.nbytes for mark in self.marks)
        self.nbytes += (0 if self.context is None else self.context.nbytes) + self.tokens.nbytes

    def arrays(self) -> list[mx.array]:
        """Every array held."""
        context = [] if self.context is None else self.context.arrays()
        return [*self.cache.arrays(), *(array for mark in self.marks for array in mark.arrays()), *context]

    def usable(self, common: int) -> int:
        """How many of its first ``common`` positions can be restored."""
        if common >= self.cache.length:
            return self.cache.length
        if self.cache.can_trim(common):
            return common
        return max((mark.length for mark in self.marks if mark.length <= common), default=0)


class Tier(Protocol):
    """A second place for entries, slower and larger: see `macspec.engine.prefix_disk.DiskTier`."""

    def best(self, tokens: Tokens) -> tuple[int, str]:
        """Usable length of the best stored entry for ``tokens``, and its key."""
        ...

    def load(self, key: str, cache: TargetCache, context: DraftContext | None) -> Entry | None:
        """Read an entry into the empty ``cache`` and ``context``; None when it is gone or damaged."""
        ...

    def store(self, entry: Entry) -> None:
        """Keep a copy of ``entry`` if the budget allows."""
        ...


def common_length(left: Tokens, right: Tokens) -> int:
    """Length of the longest common prefix."""
    length = min(left.size, right.size)
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if different.size else length


class PrefixCache:
    """Least recently used entries under a hard byte budget. Not thread-safe: it lives on the engine's thread."""

    def __init__(
        self,
        budget_bytes: int,
        new_cache: Callable[[], TargetCache],
        new_context: Callable[[], DraftContext] | None = None,
        disk: Tier | None = None,
    ) -> None:
        """
        Args:
            budget_bytes: most bytes kept between requests; 0 keeps nothing.
            new_cache: makes the target's empty caches.
            new_context: makes the drafter's empty context; None without a drafter.
            disk: where evicted entries go and are looked for.
        """
        if budget_bytes < 0:
            raise ValueError(f"the budget of the prefix cache is {budget_bytes} bytes; it cannot be negative")
        self.budget_bytes = budget_bytes
        self._new_cache, self._new_context, self._disk = new_cache, new_context, disk
        self._entries: list[Entry] = []  # least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries; at most the budget."""
        return sum(entry.nbytes for entry in self._entries)

    def take(self, tokens: Sequence[int], boundary: Callable[[], int | None] = lambda: None) -> Reuse:
        """Caches that hold the longest known prefix of ``tokens``, always short of the last one, which must be run.

        Args:
            boundary: tells how many of ``tokens`` the next turn will surely begin with (the prompt without the opening
                of the answer), None when that is unknown. Asked only where a mark there is of use.
        """
        wanted = np.asarray(tokens, dtype=np.int32)
        target = wanted[: max(wanted.size - 1, 0)]
        best, length, parting = self._best(target)
        if self._disk is not None:
            stored, key = self._disk.best(target)
            if stored > length and (loaded := self._load(key)) is not None:
                # Loaded entries are as good as kept ones, but they may not fit beside them.
                usable = loaded.usable(common_length(loaded.tokens, target))
                if usable > length:
                    best, length = loaded, usable
        if best is None or length == 0:
            reuse = Reuse(self._new_cache(), self._fresh_context(0), 0)
        else:
            reuse = self._restore(best, length)
        if reuse.cache.needs_marks:
            reuse.stops = self._stops(reuse.cached, parting, min(boundary() or target.size, target.size))
        return reuse

    def put(
        self,
        tokens: Sequence[int],
        cache: TargetCache,
        context: DraftContext | None = None,
        marks: Sequence[Checkpoint] = (),
    ) -> None:
        """Keep ``cache``, which holds the first ``cache.length`` of ``tokens``; the caller must not use it any more.

        A context at another length than the cache is dropped, or cut when it is longer. Caches that were lost, or
        cannot fit the budget, are not kept.
        """
        if cache.lost:
            return
        length = cache.length
        held = np.array(tokens[:length], dtype=np.int32)
        if held.size != length:
            raise ValueError(f"the cache holds {length} positions but only {held.size} tokens were given")
        if length == 0 or self.budget_bytes == 0:
            return
        if context is not None and context.length > length:
            context.trim(length)
        if context is not None and context.length != length:
            context = None
        kept = [mark for mark in marks if mark.length < length]
        entry = Entry(held, cache, context, kept[:1] + kept[1:][-(MAX_MARKS - 1) :])
        try:
            mx.eval(entry.arrays())
        except RuntimeError as error:
            log.warning("a prefix of %d tokens is not kept: %s", length, error)
            return
        self._add(entry)

    def use_drafter(self, new_context: Callable[[], DraftContext] | None) -> None:
        """Another drafter was loaded, or none: contexts of the old one are dropped."""
        self._new_context = new_context
        for entry in self._entries:
            entry.context = None
            entry.measure()

    def evict(self, wanted_bytes: int) -> int:
        """Release at least ``wanted_bytes`` if there is as much, least recently used first; returns the bytes freed."""
        freed = 0
        while freed < wanted_bytes and self._entries:
            freed += self._drop_oldest()
        return freed

    def clear(self) -> None:
        """Forget every entry in memory; what is on disk stays."""
        self._entries.clear()

    def close(self) -> None:
        """Hand every entry to the disk tier, if there is one, and forget them."""
        self.evict(self.nbytes)
        self.clear()

    def _best(self, target: Tokens) -> tuple[Entry | None, int, int]:
        """The entry with the longest usable prefix, that length, and the longest common prefix of all entries."""
        best, length, parting = None, 0, 0
        for entry in reversed(self._entries):
            common = common_length(entry.tokens, target)
            parting = max(parting, common)
            if (usable := entry.usable(common)) > length:
                best, length = entry, usable
        return best, length, parting

    @staticmethod
    def _stops(length: int, parting: int, boundary: int) -> tuple[int, ...]:
        stops = {boundary} if boundary > length else set()
        if parting >= length + MIN_STOP and abs(parting - boundary) >= MIN_STOP:
            stops.add(parting)
        return tuple(sorted(stops))

    def _restore(self, entry: Entry, length: int) -> Reuse:
        """Hand out ``entry`` itself when the request continues it, else a copy cut to ``length``."""
        if length == entry.cache.length:
            self._entries = [other for other in self._entries if other is not entry]
            cache, context = entry.cache, entry.context
        else:
            self._touch(entry)
            cache = entry.cache.fork()
            if cache.can_trim(length):
                cache.trim(length)
            else:
                cache.restore(next(mark for mark in entry.marks if mark.length == length))
            context = None
            if entry.context is not None:
                context = entry.context.fork()
                context.trim(length)
        if context is None:
            context = self._fresh_context(length)
        return Reuse(cache, context, length, marks=[mark for mark in entry.marks if mark.length <= length])

    def _fresh_context(self, length: int) -> DraftContext | None:
        """An empty context that has passed over ``length`` positions it never saw."""
        if self._new_context is None:
            return None
        context = self._new_context()
        if length:
            context.skip(length)
        return context

    def _load(self, key: str) -> Entry | None:
        assert self._disk is not None
        entry = self._disk.load(key, self._new_cache(), None if self._new_context is None else self._new_context())
        if entry is not None:
            entry.measure()
            if entry.nbytes <= self.budget_bytes:
                self._add(entry)
        return entry

    def _add(self, entry: Entry) -> None:
        entry.measure()
        while entry.nbytes > self.budget_bytes and entry.marks:
            entry.marks.pop(0)
            entry.measure()
        if entry.nbytes > self.budget_bytes:
            return
        for other in list(self._entries):
            common = common_length(other.tokens, entry.tokens)
            if common == other.tokens.size and entry.usable(common) == common:
                # Whatever the other could give, the new one gives too.
                self._entries.remove(other)
            elif common == entry.tokens.size and other.usable(common) == common:
                self._touch(other)
                return
        while self.nbytes + entry.nbytes > self.budget_bytes:
            self._drop_oldest()
        self._entries.append(entry)

    def _touch(self, entry: Entry) -> None:
        self._entries = [other for other in self._entries if other is not entry] + [entry]

    def _drop_oldest(self) -> int:
        entry = self._entries.pop(0)
        if self._disk is not None:
            self._disk.store(entry)
        return entry.nbytes
