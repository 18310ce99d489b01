"""Finds stop strings in a stream of text, wherever the pieces happen to be cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopWatcher:
    """Holds back only text that may still become a stop string.

    The stop string that is complete first ends the text, the longest of them if several end at the same character;
    so the result depends on the text alone and not on its pieces. One automaton step per character, whatever the
    number of stop strings (Aho & Corasick 1975).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fail = [0]
        #: Length of the longest stop string that ends in a state, 0 for none.
        self._match = [0]
        for stop in stops:
            self._insert(stop)
        self._link()
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take in ``text``: what is now certain to belong to the answer, and the stop string that ended it, if any.

        After a match everything further is dropped.
        """
        if self._matched is not None:
            return "", self._matched
        if len(self._next) == 1:
            return text, None
        state = self._state
        for index, character in enumerate(text):
            while state and character not in self._next[state]:
                state = self._fail[state]
            state = self._next[state].get(character, 0)
            if length := self._match[state]:
                seen = self._held + text[: index + 1]
                self._matched, self._held = seen[-length:], ""
                return seen[:-length], self._matched
        self._state = state
        text = self._held + text
        certain = len(text) - self._depth[state]
        self._held = text[certain:]
        return text[:certain], None

    def flush(self) -> str:
        """The text is over: what was held back and did not become a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._fail.append(0)
                self._match.append(0)
            state = self._next[state][character]
        self._match[state] = len(stop)

    def _link(self) -> None:
        """Failure links, breadth first: a state's longest proper suffix that is also a prefix of a stop string."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                queue.append(child)
                fallback = self._fail[state]
                while fallback and character not in self._next[fallback]:
                    fallback = self._fail[fallback]
                self._fail[child] = self._next[fallback].get(character, 0)
                if not self._match[child]:
                    self._match[child] = self._match[self._fail[child]]
