"""The state of one answer in progress: committed tokens, the target's caches, the drafter's context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import mlx.core as mx

from macspec.engine.memory import device_failure
from macspec.engine.prefix_cache import PrefixCache, Reuse
from macspec_models.drafters.interface import Drafter
from macspec_models.target import Target

log = logging.getLogger(__name__)

#: Committed rows whose features may wait before the drafter's context takes them in.
PENDING_LIMIT = 64


@dataclass
class Session:
    """Invariant between rounds: the caches hold every committed token but the last, the anchor.

    The drafter's context holds the same positions, except for at most `PENDING_LIMIT` whose features wait in
    ``pending`` until a draft needs them: a parked session pays nothing for its drafter.
    """

    target: Target
    drafter: Drafter | None
    tokens: list[int]
    reuse: Reuse
    pending: list[mx.array] = field(default_factory=list)

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
            with self.cache.append(len(rows)):
                self.target.forward(mx.array([rows]), self.cache.layers)
            self._keep_features(len(rows))
            self.flush()
            mx.eval(self.cache.arrays(), self.context.arrays() if self.context else [])
            if self.cache.length in self.reuse.stops:
                self.reuse.marks.append(self.cache.checkpoint())
            yield self.cache.length

    def forward(self, rows: mx.array) -> mx.array:
        """Verification pass over ``rows [1, n]``: logits ``[n, vocab]``. `commit` must follow."""
        self.cache.begin(rows.shape[1])
        self._rows = rows
        return self.target.forward(rows, self.cache.layers)[0]

    def commit(self, tokens: list[int]) -> None:
        """Make the chosen ``tokens`` part of the answer: as many rows stay in the caches, the others are undone."""
        kept = len(tokens)
        self._keep_features(kept)
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
            prefixes.put(self.tokens, self.cache, self.context, self.reuse.marks)

    def _keep_features(self, rows: int) -> None:
        features = self.target.features() if self.drafter is not None else None
        if features is not None:
            self.pending.append(features[:rows])

    def _replay(self, rows: int) -> None:
        self.target.forward(self._rows[:, :rows], self.cache.layers)
