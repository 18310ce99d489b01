"""The target's caches as one object that is always at a known length.

Every way to add rows is a transaction. After any sequence of them the caches equal a fresh prefill of the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from macspec.engine.caches.leaves import CacheStateError, Leaf, adopt, leaves, rebuild, refusal
from macspec.errors import ModelLoadError


@dataclass(frozen=True)
class Checkpoint:
    """What `TargetCache.restore` needs to come back to ``length`` later: recurrent states and windows, no full KV."""

    length: int
    states: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        """Every array held."""
        return [part for state in self.states if state is not None for part in state if isinstance(part, mx.array)]


def supports_rollback(layers: list[Any]) -> str | None:
    """Why a verification pass over these caches could not be undone, as a clause naming the kind; None if it can."""
    for number, cache in enumerate(layers):
        reason = refusal(cache)
        if reason is not None:
            return f"layer {number} keeps a {reason}, whose rows cannot be taken back"
    return None


class TargetCache:
    """Transactions over the list of caches an mlx-lm model makes for one sequence.

    Prefill: ``with cache.append(rows): target.forward(chunk, cache.layers)``. Verification: ``begin(rows)``, one
    forward pass over exactly those rows, ``commit(accepted, replay)`` or `rollback`. Between transactions ``length``
    is exact for every layer. Nothing here waits for the device.
    """

    supports_rollback = staticmethod(supports_rollback)

    def __init__(self, layers: list[Any]) -> None:
        """Take over ``layers``, fresh or filled with the same tokens; use ``self.layers`` from now on.

        Raises:
            ModelLoadError: one of them cannot be rolled back.
        """
        reason = supports_rollback(layers)
        if reason is not None:
            raise ModelLoadError(f"This model cannot be used: {reason}.")
        self.layers: list[Any] = [adopt(cache) for cache in layers]
        self._leaves: list[Leaf] = [leaf for cache in self.layers for leaf in leaves(cache)]
        self._length = next((n for leaf in self._leaves if (n := leaf.length()) is not None), 0)
        self._rows: int | None = None
        self._marks: list[Any] = []
        self._broken = False
        #: Rows run a second time for recurrent layers, since construction.
        self.replayed_rows = 0

    @property
    def length(self) -> int:
        """Positions held. During a transaction: before it."""
        return self._length

    @property
    def lost(self) -> bool:
        """Whether `abandon` was called or a rollback failed: nothing can be done with these caches."""
        return self._broken

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps one state for all positions, so that partial rollbacks need a replay."""
        return any(leaf.recurrent for leaf in self._leaves)

    @property
    def needs_marks(self) -> bool:
        """Whether going back far takes a checkpoint: a layer is recurrent or forgets old positions."""
        return any(leaf.recurrent or leaf.bounded for leaf in self._leaves)

    @property
    def nbytes(self) -> int:
        """Bytes held on the device, spare rows included."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        """Every array held, to evaluate so that nothing stays lazy."""
        return [array for leaf in self._leaves for array in leaf.arrays()]

    def row_costs(self) -> list[tuple[int, int | None, int]]:
        """Per leaf: buffer rows (0 when there are none to count), the most it ever keeps (None: all), and its bytes."""
        return [leaf.row_cost() for leaf in self._leaves]

    @contextmanager
    def append(self, rows: int | None = None) -> Iterator[None]:
        """A forward pass whose rows all stay. An exception inside undoes it.

        Args:
            rows: how many; may be left out unless every layer is recurrent.
        """
        self._open(rows or 0)
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        counted = self._counted()
        if counted is not None and rows is None:
            rows = counted - self._length
        if rows is None:
            self.rollback()
            raise ValueError("append(rows) needs the number of rows: no layer of this model counts them")
        self._rows = rows
        self.commit(rows)

    def begin(self, rows: int) -> None:
        """Open a transaction for one forward pass over ``rows`` rows.

        Raises:
            CacheStateError: one is open already, or a replay failed and the caches are lost.
        """
        if rows < 1:
            raise ValueError(f"a transaction needs at least one row, not {rows}")
        self._open(rows)

    def _open(self, rows: int) -> None:
        if self._broken:
            raise CacheStateError("these caches were lost in an earlier failure; start from a fresh prefill")
        if self._rows is not None:
            raise CacheStateError("a transaction is open already")
        self._marks = [leaf.mark() for leaf in self._leaves]
        self._rows = rows

    def commit(self, accepted: int, replay: Callable[[int], None] | None = None) -> None:
        """Keep the first ``accepted`` of the rows just forwarded, take the others back.

        Args:
            replay: runs its argument's number of first rows through the target on ``self.layers`` again. Called only
                when a recurrent layer without a record of the pass has to forget some rows but not all; the caches are
                as before `begin` then. It overwrites what the target remembers of its last pass, taps included.

        Raises:
            CacheStateError: the pass did not add the announced rows to every layer. The caches are as before `begin`.
        """
        if self._rows is None:
            raise CacheStateError("there is no open transaction to commit")
        rows, start = self._rows, self._length
        if not 0 <= accepted <= rows:
            raise ValueError(f"cannot keep {accepted} of {rows} rows")
        try:
            self._expect(start + rows)
            if 0 < accepted < rows and not all(leaf.resumable(rows) for leaf in self._leaves):
                if replay is None:
                    raise ValueError("a model with recurrent layers needs replay to keep part of a pass")
                self._rewind(start)
                self.replayed_rows += accepted
                replay(accepted)
                self._expect(start + accepted)
            elif accepted < rows:
                for leaf, mark in zip(self._leaves, self._marks, strict=True):
                    leaf.keep(start, accepted, mark)
        except BaseException:
            self.rollback()
            raise
        self._length = start + accepted
        self._close()

    def rollback(self) -> None:
        """Take back everything since the transaction was opened, finished pass or not; no-op when none is open."""
        if self._rows is not None:
            try:
                self._rewind(self._length)
            except BaseException:
                self._broken = True
                raise
            finally:
                self._close()

    def clear(self) -> None:
        """Forget everything, whatever was under way: the caches as they were made."""
        self._close()
        for leaf in self._leaves:
            leaf.clear()
        self._length = 0

    def abandon(self) -> None:
        """Declare the caches lost, after a device failure: every later transaction is refused."""
        self._broken = True
        self._close()

    def can_trim(self, length: int) -> bool:
        """Whether `trim` can go back to ``length`` without a checkpoint."""
        if length == self._length:
            return True
        return (
            0 <= length < self._length and not self.recurrent and all(leaf.lowest() <= length for leaf in self._leaves)
        )

    def trim(self, length: int) -> None:
        """Forget positions from ``length`` on, and release the memory when that was most of them.

        Raises:
            CacheStateError: see `can_trim`.
        """
        self._settled()
        if not self.can_trim(length):
            raise CacheStateError(f"these caches cannot go back from {self._length} to {length} positions")
        if length < self._length:
            for leaf in self._leaves:
                leaf.rewind(length, None)
                leaf.shrink()
            self._length = length

    def checkpoint(self) -> Checkpoint:
        """Keep what it takes to come back to this length from a longer one (or on a fork that is longer).

        Its arrays start to be computed at once, so that it does not hold on to larger buffers.
        """
        self._settled()
        made = Checkpoint(self._length, tuple(leaf.snapshot() for leaf in self._leaves))
        mx.async_eval(made.arrays())  # type: ignore[no-untyped-call]  # MLX is untyped
        return made

    def restore(self, checkpoint: Checkpoint) -> None:
        """Come back to ``checkpoint``, taken of these caches, or of the ones these were forked from, when shorter."""
        self._settled()
        if checkpoint.length > self._length or len(checkpoint.states) != len(self._leaves):
            raise CacheStateError("the checkpoint is not of these caches")
        for leaf, state in zip(self._leaves, checkpoint.states, strict=True):
            leaf.restore(state, checkpoint.length)
            leaf.shrink()
        self._length = checkpoint.length

    def fork(self) -> TargetCache:
        """An independent copy; arrays are shared until one side writes to them."""
        self._settled()
        parts = iter([leaf.fork() for leaf in self._leaves])
        other = TargetCache([rebuild(cache, parts) for cache in self.layers])
        other._length = self._length
        return other

    def export(self) -> list[list[Any]]:
        """Per leaf the arrays, integers and None that `fill` takes; what a file needs to hold."""
        self._settled()
        return [leaf.export() for leaf in self._leaves]

    def fill(self, parts: list[list[Any]], length: int) -> None:
        """Make these empty caches what `export` saw at ``length`` positions; `check` afterwards."""
        self._settled()
        if self._length or len(parts) != len(self._leaves):
            raise CacheStateError("the exported caches are of another model")
        for leaf, part in zip(self._leaves, parts, strict=True):
            leaf.fill(part, length)
        self._length = length

    def check(self) -> None:
        """Test the invariants that tests and debug mode rely on.

        Raises:
            CacheStateError: a transaction is open, or a layer does not hold exactly ``length`` positions; names it.
        """
        self._settled()
        for number, leaf in enumerate(self._leaves):
            problem = leaf.problem(self._length)
            if problem is not None:
                raise CacheStateError(
                    f"cache {number} ({type(leaf.cache).__name__}) {problem}; {self._length} positions are committed"
                )

    def _counted(self) -> int | None:
        return next((n for leaf in self._leaves if (n := leaf.length()) is not None), None)

    def _expect(self, length: int) -> None:
        for number, leaf in enumerate(self._leaves):
            held = leaf.length()
            if held is not None and held != length:
                raise CacheStateError(
                    f"cache {number} ({type(leaf.cache).__name__}) is at position {held} after a pass that should end "
                    f"at {length}"
                )

    def _rewind(self, length: int) -> None:
        for leaf, mark in zip(self._leaves, self._marks, strict=True):
            leaf.rewind(length, mark)

    def _close(self) -> None:
        self._rows, self._marks = None, []
        for leaf in self._leaves:
            leaf.close()

    def _settled(self) -> None:
        if self._broken:
            raise CacheStateError("these caches were lost in an earlier failure; start from a fresh prefill")
        if self._rows is not None:
            raise CacheStateError("a transaction is open")
