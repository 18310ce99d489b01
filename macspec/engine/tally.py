"""Adds up one answer's rounds into its statistics."""

from __future__ import annotations

import time

import mlx.core as mx

from macspec.engine.rounds import Committed
from macspec.request import GenerationStats


class Tally:
    """Counts and times of one answer. The clock starts when it is made."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens, self.cached_tokens = prompt_tokens, 0
        self.tokens = self.first_round = self.rounds = self.parked = 0
        self.drafted = self.verified = self.accepted = 0
        self.draft_ms = self.verify_ms = self.other_ms = self.redecide_ms = 0.0
        self.redecided = 0
        self._start = self._first = self._last = time.perf_counter()
        self._prefill_seconds = 0.0

    def prefilled(self) -> None:
        """The prompt is in the caches."""
        self._prefill_seconds = time.perf_counter() - self._start

    def add(self, committed: Committed) -> None:
        """Count one round."""
        outcome = committed.outcome
        self._last = time.perf_counter()
        if self.rounds == 0:
            self._first, self.first_round = self._last, outcome.committed
        self.rounds += 1
        self.tokens += outcome.committed
        self.parked += outcome.drafted == 0
        self.drafted += outcome.drafted
        self.verified += outcome.depth
        self.accepted += outcome.accepted
        self.draft_ms += outcome.draft_ms
        self.verify_ms += outcome.verify_ms
        self.other_ms += outcome.other_ms
        self.redecided += committed.redecided
        self.redecide_ms += committed.redecide_ms

    def stats(self, thinking_tokens: int) -> GenerationStats:
        """The totals. Speed of generation leaves out the first round, whose tokens came with the prompt's time."""
        decode = self._last - self._first
        fresh = self.prompt_tokens - self.cached_tokens
        return GenerationStats(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generation_tokens=self.tokens,
            thinking_tokens=thinking_tokens,
            prompt_tps=fresh / self._prefill_seconds if self._prefill_seconds > 0 else 0.0,
            generation_tps=(self.tokens - self.first_round) / decode if decode > 0 else 0.0,
            rounds=self.rounds,
            drafted=self.drafted,
            verified=self.verified,
            accepted=self.accepted,
            acceptance_length=self.tokens / self.rounds if self.rounds else 0.0,
            parked_rounds=self.parked,
            draft_ms=self.draft_ms,
            verify_ms=self.verify_ms,
            other_ms=self.other_ms,
            redecided=self.redecided,
            redecide_ms=self.redecide_ms,
            peak_memory=mx.get_peak_memory(),
        )
