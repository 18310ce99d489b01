"""Exact mode: the text of plain decoding, also where a row's logits depend on how many rows its pass has.

Where rows have the same bits in every pass (`RowNoise.same_bits`) there is nothing to do: every round is plain
decoding's by itself. Elsewhere a choice made in a pass of several rows counts only when its lead over every rival is
larger than the measured difference could turn. The others, near-ties, are decided again *as plain decoding decides
them*: the caches go back to the last position up to which they hold what one-row passes leave, and every token since
is run again, one row per pass. One row on top of the caches as they are would not do: the keys and values of several
rows at a time differ as much as their logits.

What is guaranteed: a choice that was decided again, and everything when the bits are the same, is plain decoding's.
What is bounded: the others are plain decoding's as long as no logit differs by more than `RowNoise.bound`, twice the
largest difference measured on this machine; every decision made again measures it once more.

A near-tie makes the speculation before it worthless, since those tokens are run one by one after all. So an answer
speculates only while it is likely to see no more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from macspec.engine.row_noise import RowNoise, largest_difference
from macspec.engine.sampling import Chooser
from macspec.engine.session import Session
from macspec.engine.verify import accepted_prefix

#: Expected near-ties in the rest of the answer above which it goes on without speculation.
PATIENCE = 0.5
#: Tokens an answer is taken to have left at most: limits are often far above what answers need.
HORIZON = 512

#: Builds near-tie flags from a pass's lazy scores and choices.
Watch = Callable[[mx.array, mx.array], None]
#: Runs the verification pass over a draft: logits ``[rows, vocab]`` and the target's choices.
Pass = Callable[[list[int], Watch | None], tuple[mx.array, list[int]]]
#: Runs work that waits for the device, and runs it again after a recovery when a kernel failed in it.
Guard = Callable[[Callable[[], "Settled"]], "Settled"]


@dataclass(frozen=True, slots=True)
class Settled:
    """Rows that count: logits ``[rows, vocab]``, choices, and what it took to decide some of them again."""

    logits: mx.array
    choices: list[int]
    redecided: int = 0
    seconds: float = 0.0


class Exact:
    """Near-ties of one answer. Made when the prompt is in the caches."""

    def __init__(self, session: Session, chooser: Chooser, noise: RowNoise) -> None:
        self.session, self.chooser, self.noise = session, chooser, noise
        #: How to come back to the last length up to which the caches are those of plain decoding.
        self._clean = session.cache.checkpoint()
        #: Whether rows of wider passes came after it.
        self._mixed = False
        self._recoveries = session.recoveries
        self._doubts: mx.array | None = None

    def speculates(self, budget: int) -> bool:
        """Whether drafting is worth while with ``budget`` tokens to go."""
        return self.noise.rate * min(budget, HORIZON) < PATIENCE

    def verify(self, draft: list[int], run: Pass, guard: Guard) -> Settled:
        """Verify ``draft`` by ``run`` and decide again what is too close to call. The session must commit next."""
        self._heed_recovery()
        if not draft and not self._mixed:
            return Settled(*run(draft, None))
        if not self._mixed:
            self._clean, self._mixed = self.session.cache.checkpoint(), True
        logits, choices = run(draft, self._watch)
        assert self._doubts is not None
        flags = cast(list[bool], self._doubts.tolist())
        used = min(accepted_prefix(draft, choices) + 1, len(choices))
        self.noise.tokens += used
        if not any(flags[:used]):
            return Settled(logits, choices)
        first = flags.index(True)
        return guard(lambda: self._again(draft[:first], logits))

    def _watch(self, scores: mx.array, choices: mx.array) -> None:
        """Have the flags computed along with the choices: one wait serves both."""
        self._doubts = self.chooser.near_ties(scores, choices, len(self.session.tokens), self.noise.bound)
        mx.async_eval(choices, self._doubts)  # type: ignore[no-untyped-call]  # MLX is untyped

    def _again(self, draft: list[int], doubtful: mx.array) -> Settled:
        """Plain decoding's choice after ``draft``, by one-row passes from where the caches are still its own."""
        begin = time.perf_counter()
        session, cache = self.session, self.session.cache
        while True:
            cache.rollback()
            self._heed_recovery()
            cache.restore(self._clean)
            for token in session.tokens[cache.length : -1]:
                with cache.append(1):
                    session.target.forward(mx.array([[token]]), cache.layers)
                # Logits nobody asks for are not computed.
                mx.async_eval(cache.arrays())  # type: ignore[no-untyped-call]  # MLX is untyped
            logits = session.forward_singly(draft)
            choices = cast(list[int], self.chooser.choose(logits, len(session.tokens), draft).tolist())
            accepted = accepted_prefix(draft, choices)
            if accepted == len(draft):
                break
            # A row before was off by more than the bound: plain decoding parts from the draft there.
            draft = draft[:accepted]
        self._mixed = False
        self.noise.near_ties += 1
        self.noise.observe(largest_difference(doubtful[: len(choices)], logits[: len(choices)]))
        return Settled(logits, choices, 1, time.perf_counter() - begin)

    def _heed_recovery(self) -> None:
        """Start from the caches as they are after a kernel failed: plain decoding could not have gone on either."""
        if self.session.recoveries != self._recoveries:
            self._recoveries = self.session.recoveries
            self._clean, self._mixed = self.session.cache.checkpoint(), False
