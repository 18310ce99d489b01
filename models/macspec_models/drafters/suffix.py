"""Prompt lookup without tensors: where did the last few tokens occur before, and what came after them there?

Saxena's prompt-lookup decoding with an index instead of a scan, so that long contexts cost microseconds per round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

#: Lengths of the n-grams that are indexed, longest first; a shorter one is tried when the longer was never seen.
GRAMS = (4, 2)
#: Earlier occurrences remembered per n-gram, the newest ones.
OCCURRENCES = 32
#: Matches are measured up to this many tokens.
LONGEST = 32


@dataclass(frozen=True, slots=True)
class Match:
    """``tokens`` followed the best earlier occurrence of the context's last ``length`` tokens."""

    tokens: tuple[int, ...]
    length: int


class SuffixIndex:
    """An index over one growing sequence of token ids."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], deque[int]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def cut(self, length: int) -> None:
        """Forget the tokens from ``length`` on. What the index says of them is found out when it is read."""
        del self._tokens[length:]

    def follow(self, history: Sequence[int]) -> None:
        """Make the index cover ``history``, which continues what it covers."""
        known = min(len(self._tokens), len(history))
        # A sequence only grows between cuts, so its end tells whether this is another one.
        if known < len(self._tokens) or (known and self._tokens[known - 1] != history[known - 1]):
            self._tokens, self._ends, known = [], {}, 0
        for position in range(known, len(history)):
            self._tokens.append(history[position])
            # A gram is entered when the token after it is known, so that every entry has a continuation.
            for size in GRAMS:
                if position >= size:
                    gram = tuple(self._tokens[position - size : position])
                    self._ends.setdefault(gram, deque(maxlen=OCCURRENCES)).append(position)

    def match(self, limit: int) -> Match | None:
        """The longest earlier match of the sequence's end, the newest among equals, and ``limit`` tokens after it."""
        for size in GRAMS:
            best, length = 0, 0
            for end in reversed(self._ends.get(tuple(self._tokens[-size:]), ())):
                reach = self._reach(end)
                if reach > length:
                    best, length = end, reach
            if length >= size:
                return Match(self._copy(best, limit), length)
        return None

    def _copy(self, begin: int, count: int) -> tuple[int, ...]:
        """``count`` tokens from ``begin`` on, running over the end into the copy itself: repetition goes on."""
        period = self._tokens[begin : begin + count]
        return tuple(period[place % len(period)] for place in range(count))

    def _reach(self, end: int) -> int:
        """How many tokens before ``end`` equal those at the sequence's end."""
        tokens, reach = self._tokens, 0
        if end >= len(tokens):
            return 0
        while reach < min(LONGEST, end) and tokens[end - 1 - reach] == tokens[-1 - reach]:
            reach += 1
        return reach


class MatchRecord:
    """How often a looked-up token was right, by the length of the match before it: decayed counts over a prior.

    A match of length n whose first k tokens were right is a match of length n + k for the next one.
    """

    #: Lower bounds of the length groups and the share of right tokens assumed before anything was seen.
    GROUPS = ((2, 0.35), (3, 0.45), (4, 0.55), (6, 0.7), (9, 0.8), (17, 0.9))
    #: Weight of the prior in observations, and how fast old observations fade.
    PRIOR, DECAY = 4.0, 0.98

    def __init__(self) -> None:
        self._right = [share * self.PRIOR for _, share in self.GROUPS]
        self._seen = [self.PRIOR for _ in self.GROUPS]

    def _group(self, length: int) -> int:
        return max(0, sum(length >= bound for bound, _ in self.GROUPS) - 1)

    def share(self, length: int) -> float:
        """Estimated chance that the token after a match of this length is right, strictly between 0 and 1."""
        group = self._group(length)
        return min(0.995, max(0.005, self._right[group] / self._seen[group]))

    def chances(self, match: Match) -> list[float]:
        """Chance of each token of a match, given that those before it were right."""
        return [self.share(match.length + slot) for slot in range(len(match.tokens))]

    def learn(self, match: Match, truth: Sequence[int]) -> None:
        """Compare a match with the tokens that really followed; what lies beyond the first wrong one says nothing."""
        for slot, (token, real) in enumerate(zip(match.tokens, truth, strict=False)):
            group = self._group(match.length + slot)
            base = self.GROUPS[group][1] * self.PRIOR
            self._right[group] = base + (self._right[group] - base) * self.DECAY + (token == real)
            self._seen[group] = self.PRIOR + (self._seen[group] - self.PRIOR) * self.DECAY + 1
            if token != real:
                return
