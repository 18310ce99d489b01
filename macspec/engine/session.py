"""The state of one answer in progress: committed tokens, the target's caches, the drafter's context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import mlx.core as mx

from macspec.engine.caches import Checkpoint
from macspec.engine.memory import device_failure
from macspec.engine.prefix_cache import PrefixCache, Reuse
from macspec.kernels.library import KernelLibrary
from macspec_models.drafters.interface import Drafter
from macspec_models.target import Target

log = logging.getLogger(__name__)

#: Rows per pass when everything is computed again.
RECOVERY_CHUNK = 512
#: Committed rows whose features may wait before the drafter's context takes them in.
PENDING_LIMIT = 64


@dataclass
class Session:
    """Invariant between rounds: the caches hold every committed token but the last, the anchor.

    The drafter's context holds the same positions, except for at most `PENDING_LIMIT` whose features wait in
    ``pending`` until a draft needs them: a parked session pays nothing for its drafter. Kernels of ``library`` take no
    part in the prompt's passes.
    """

    target: Target
    drafter: Drafter | None
    tokens: list[int]
    reuse: Reuse
    library: KernelLibrary | None = None
    pending: list[mx.array] = field(default_factory=list)
    #: How often `recover` was called.
    recoveries: int = 0
    #: What later requests may start from at most; None: everything.
    keep: Checkpoint | None = None

    def __post_init__(self) -> None:
        self.cache, self.context = self.reuse.cache, self.reuse.context

    @property
    def anchor(self) -> int:
        """The last committed token."""
        return self.tokens[-1]

    def prefill(self, chunk: int, cancelled: Callable[[], bool]) -> Iterator[int]:
        """Take the prompt up to its last token into the caches, chunk by chunk; yields how many are in.

        Every chunk goes through the ordinary forward pass, and every chunk's features reach the drafter.
        """
        total = len(self.tokens) - 1
        while self.cache.length < total and not cancelled():
            begin = self.cache.length
            stop = next((stop for stop in self.reuse.stops if stop > begin), total)
            rows = self.tokens[begin : min(begin + chunk, stop, total)]
            with self.cache.append(len(rows)), self._resting():
                self.target.forward(mx.array([rows]), self.cache.layers)
            self._keep_features(self.target.features(), len(rows))
            self.flush()
            mx.eval(self.cache.arrays(), self.context.arrays() if self.context else [])
            if self.cache.length in self.reuse.stops:
                self.reuse.marks.append(self.cache.checkpoint())
            yield self.cache.length

    def forward(self, rows: mx.array) -> mx.array:
        """Verification pass over ``rows [1, n]``: logits ``[n, vocab]``. `commit` must follow."""
        self.cache.begin(rows.shape[1])
        self._rows = rows
        logits = self.target.forward(rows, self.cache.layers)[0]
        self._features = self.target.features()
        return logits

    def forward_singly(self, draft: list[int]) -> mx.array:
        """As `forward` over the anchor and ``draft``, but each row in a pass of its own."""
        rows = [self.anchor, *draft]
        self.cache.begin(len(rows))
        self._rows = mx.array([rows])
        logits: list[mx.array] = []
        features: list[mx.array] = []
        for row in rows:
            logits.append(self.target.forward(mx.array([[row]]), self.cache.layers)[0])
            found = self.target.features()
            features += [] if found is None else [found]
        self._features = mx.concatenate(features, axis=0) if features else None
        return mx.concatenate(logits, axis=0)

    def commit(self, tokens: list[int]) -> None:
        """Make the chosen ``tokens`` part of the answer: as many rows stay in the caches, the others are undone."""
        kept = len(tokens)
        self._keep_features(self._features, kept)
        self.cache.commit(kept, self._replay)
        self.tokens.extend(tokens)
        if sum(part.shape[0] for part in self.pending) > PENDING_LIMIT:
            self.flush()
            # MLX's own annotations leave this function out.
            mx.async_eval(self.context.arrays() if self.context else [])  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Hand waiting features to the drafter's context."""
        if self.pending and self.drafter is not None and self.context is not None:
            features = self.pending[0] if len(self.pending) == 1 else mx.concatenate(self.pending, axis=0)
            self.drafter.extend(self.context, features)
        self.pending.clear()

    def recover(self) -> None:
        """Compute everything held anew from the tokens: after a failure in the middle of a pass no array is safe.

        MLX leaves arrays of a failed evaluation marked as computed, and a cache's buffer is one of them.
        """
        self.recoveries += 1
        self.pending.clear()
        self.cache.clear()
        self.reuse.marks.clear()
        if self.drafter is not None:
            self.context = self.drafter.new_context()
        for _ in self.prefill(RECOVERY_CHUNK, lambda: False):
            pass
        if self.keep is not None:
            self.keep = self.cache.checkpoint()

    def again(self) -> None:
        """`recover`, then the last `forward` once more: for a failure between a pass and its `commit`."""
        rows = self._rows
        self.recover()
        self.forward(rows)

    @contextmanager
    def lasting(self, prefixes: PrefixCache | None) -> Iterator[None]:
        """Give the caches back for later requests afterwards, whatever state the answer was left in; None drops them.

        When the answer failed and its caches cannot be given back either, the first error is the one that is raised.
        An error of the device leaves as a `MacspecError`, and the caches do not serve another request.
        """
        try:
            yield
        except BaseException as error:
            failure = device_failure(error)
            if failure is not None:
                # What was computed since the last wait is undefined.
                self.cache.abandon()
            try:
                self._give_back(prefixes)
            except Exception as second:
                log.warning("the prefix of a failed request is not kept: %s", second)
            if failure is not None:
                raise failure.error() from error
            raise
        self._give_back(prefixes)

    def _give_back(self, prefixes: PrefixCache | None) -> None:
        if prefixes is not None and not self.cache.lost:
            self.cache.rollback()
            self.flush()
            if self.keep is not None:
                self.cache.restore(self.keep)
            prefixes.put(self.tokens, self.cache, self.context, self.reuse.marks)

    def _resting(self) -> AbstractContextManager[None]:
        return nullcontext() if self.library is None else self.library.resting()

    def _keep_features(self, features: mx.array | None, rows: int) -> None:
        if features is not None and self.drafter is not None:
            self.pending.append(features[:rows])

    def _replay(self, rows: int) -> None:
        self.target.forward(self._rows[:, :rows], self.cache.layers)
