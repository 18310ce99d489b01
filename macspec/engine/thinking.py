"""Follows thinking sections in a token stream: where they begin and end, and when their budget is used up."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from macspec.engine.vocabulary import Vocabulary

Marker = tuple[int, ...]

#: Single tokens around thinking that mlx-lm does not look for: Magistral's and Seed-OSS's.
_PAIRS = (("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
#: Harmony, the format of gpt-oss: special tokens that open a channel, and what ends thinking in it and begins an answer
#: (https://cookbook.openai.com/articles/openai-harmony).
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_HARMONY_THINKING = "<|channel|>analysis<|message|>"
_HARMONY_ANSWER = "<|channel|>final<|message|>"
_HARMONY_TURN = "<|end|><|start|>assistant"


@dataclass(frozen=True, slots=True)
class Markers:
    """Token sequences around a model's thinking: ``start`` opens it, ``end`` closes it and begins the answer."""

    start: Marker
    end: Marker
    #: Begins an answer without thinking, None where nothing marks that.
    answer: Marker | None = None
    #: Special tokens: one after ``start`` in a prompt, such as the end of a turn, is outside thinking.
    special: frozenset[int] = frozenset()

    @classmethod
    def of(cls, tokenizer: Any) -> Markers | None:
        """The markers of a model that thinks, else None; looked for once per tokenizer.

        Args:
            tokenizer: mlx-lm's wrapper, which knows most; None has none.
        """
        if tokenizer is None:
            return None
        if tokenizer not in _known:
            _known[tokenizer] = cls._find(tokenizer)
        return _known[tokenizer]

    @classmethod
    def _find(cls, tokenizer: Any) -> Markers | None:
        def made(start: Marker, end: Marker, answer: Marker | None = None) -> Markers:
            return cls(start, end, answer, Vocabulary.of(tokenizer).special)

        if getattr(tokenizer, "has_thinking", False):
            return made(tuple(tokenizer.think_start_tokens), tuple(tokenizer.think_end_tokens))
        # Tens of milliseconds: the tokenizer makes a new dictionary each time.
        vocabulary = tokenizer.get_vocab()
        for start, end in _PAIRS:
            if start in vocabulary and end in vocabulary:
                return made((vocabulary[start],), (vocabulary[end],))
        if not all(token in vocabulary for token in _HARMONY):
            return None

        def encode(text: str) -> Marker:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        answer = encode(_HARMONY_ANSWER)
        return made(encode(_HARMONY_THINKING), encode(_HARMONY_TURN + _HARMONY_ANSWER), answer)

    def open_after(self, tokens: Sequence[int]) -> bool:
        """Whether ``tokens``, a prompt, end inside thinking. A message that just mentions the marker opens nothing."""
        begin = _last(tokens, self.start)
        return begin > _last(tokens, self.end) and self.special.isdisjoint(tokens[begin + len(self.start) :])


_known: WeakKeyDictionary[Any, Markers | None] = WeakKeyDictionary()


class MarkerMatch:
    """Finds one sequence of tokens in a stream."""

    def __init__(self, marker: Marker) -> None:
        self.marker = marker
        #: Tokens of the marker that the stream ends with.
        self.matched = 0

    def feed(self, token: int) -> bool:
        """Whether the marker is complete with ``token``; the search then starts afresh."""
        seen = (*self.marker[: self.matched], token)
        self.matched = next((k for k in range(len(seen), 0, -1) if seen[-k:] == self.marker[:k]), 0)
        if self.matched == len(self.marker):
            self.matched = 0
            return True
        return False


class ThinkingTracker:
    """The thinking state of an answer: outside or inside a section, and how many tokens it has taken."""

    def __init__(self, start: Marker, end: Marker, *, inside: bool, budget: int | None = None) -> None:
        """Start outside, or ``inside`` when the prompt already opened a section.

        Args:
            start: tokens that open a section.
            end: tokens that close it.
            budget: thinking tokens of all sections together after which `forced` demands the end.
        """
        self.start, self.end, self.inside, self.budget = start, end, inside, budget
        #: Tokens inside sections so far, closing markers included.
        self.count = 0
        #: Whether any section was opened.
        self.opened = inside
        self._match = MarkerMatch(end if inside else start)

    @classmethod
    def of(
        cls, tokenizer: Any, prompt: Sequence[int], *, thinking: bool | None = None, budget: int | None = None
    ) -> ThinkingTracker | None:
        """The tracker for an answer to ``prompt``, None for a model that does not think.

        ``thinking=False`` closes every section at once, should the template not have prevented it.
        """
        markers = Markers.of(tokenizer)
        if markers is None:
            return None
        inside = markers.open_after(prompt)
        return cls(markers.start, markers.end, inside=inside, budget=0 if thinking is False else budget)

    def copy(self) -> ThinkingTracker:
        """An independent tracker in the same state."""
        other = copy(self)
        other._match = copy(self._match)
        return other

    @property
    def matched(self) -> int:
        """Tokens of the marker looked for now that were already seen."""
        return self._match.matched

    def feed(self, token: int) -> bool:
        """Advance by one token; True when it completed a marker."""
        if self.inside:
            self.count += 1
        if not self._match.feed(token):
            return False
        self.inside = not self.inside
        self.opened = True
        self._match = MarkerMatch(self.end if self.inside else self.start)
        return True

    def forced(self) -> int | None:
        """The token that must come next because the budget is used up, else None."""
        if self.inside and self.budget is not None and self.count >= self.budget:
            return self.end[self._match.matched]
        return None


def _last(tokens: Sequence[int], marker: Marker) -> int:
    """Where ``marker`` begins for the last time, -1 when it does not occur."""
    first, size = marker[0], len(marker)
    return next(
        (k for k in range(len(tokens) - size, -1, -1) if tokens[k] == first and tuple(tokens[k : k + size]) == marker),
        -1,
    )
