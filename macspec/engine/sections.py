"""Sorts an answer's tokens into text, thinking and tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from macspec.engine.stopping import StopWatcher
from macspec.engine.text import Detokenizer
from macspec.engine.thinking import Marker, MarkerMatch, Markers
from macspec.engine.vocabulary import Vocabulary

Section = Literal["answer", "thinking"]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call as the model made it; ``arguments`` is JSON text, ``call_id`` empty when the model gave none."""

    name: str
    arguments: str
    call_id: str = ""


@dataclass(slots=True)
class Pieces:
    """What a token, or the end, made certain; ``parts`` keeps text and calls in the order they came."""

    parts: list[tuple[Section, str] | ParsedCall] = field(default_factory=list)
    #: The stop string that ended the answer here.
    matched: str | None = None


class Sections:
    """The state of one answer's text. Markers are not shown, nor line breaks right after them.

    Stop strings are looked for in the answer, not in thinking or tool calls. A tool call that the model's parser does
    not understand stays in the answer as it was written.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        *,
        stops: Sequence[str] = (),
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Start after ``prompt``, which may have opened a thinking section.

        Args:
            tokenizer: mlx-lm's wrapper, which knows the model's markers and its parser of tool calls.
            stops: strings that end the answer.
            tools: what the model may call; without any, calls are text.
        """
        self._tokenizer, self._tools = tokenizer, list(tools)
        self._think = Markers.of(tokenizer)
        self._call: tuple[Marker, Marker] | None = None
        if tools and getattr(tokenizer, "has_tool_calling", False):
            self._call = (tuple(tokenizer.tool_call_start_tokens), tuple(tokenizer.tool_call_end_tokens or ()))
        self._watcher = StopWatcher(stops)
        self.thinking_tokens = 0
        self._held: list[int] = []
        self._call_tokens: list[int] = []
        self._strip = False
        self._enter("thinking" if self._think is not None and self._think.open_after(prompt) else "answer")

    def add(self, token: int) -> Pieces:
        """Take in one token."""
        pieces = Pieces()
        self.thinking_tokens += self._state == "thinking"
        self._held.append(token)
        completed = None
        for match, after in self._markers:
            if match.feed(token):
                completed = (match.marker, after)
        if completed is not None:
            marker, after = completed
            self._release(len(self._held) - len(marker), pieces)
            self._held.clear()
            if pieces.matched is None:
                self._leave(pieces)
                self._strip = True
                self._enter(after)
        else:
            partial = max((match.matched for match, _ in self._markers), default=0)
            self._release(len(self._held) - partial, pieces)
        return pieces

    def finish(self, *, complete: bool = True) -> Pieces:
        """No token follows: what was held back.

        Args:
            complete: the model ended the answer itself. Else a tool call may have lost its last arguments, which not
                every parser notices, so one whose end is missing is text.
        """
        pieces = Pieces()
        self._release(len(self._held), pieces)
        if pieces.matched is None:
            self._leave(pieces, ended=False, complete=complete)
        return pieces

    def _enter(self, state: Literal["answer", "thinking", "call"]) -> None:
        self._state = state
        self._detokenizer = Detokenizer(self._tokenizer)
        self._markers: list[tuple[MarkerMatch, Literal["answer", "thinking", "call"]]] = []
        if state == "answer":
            if self._think is not None:
                self._markers.append((MarkerMatch(self._think.start), "thinking"))
                if self._think.answer is not None:
                    self._markers.append((MarkerMatch(self._think.answer), "answer"))
            if self._call is not None:
                self._markers.append((MarkerMatch(self._call[0]), "call"))
        elif state == "thinking" and self._think is not None:
            self._markers.append((MarkerMatch(self._think.end), "answer"))
        elif self._call is not None and self._call[1]:
            self._markers.append((MarkerMatch(self._call[1]), "answer"))

    def _release(self, count: int, pieces: Pieces) -> None:
        """Give the first ``count`` held tokens to the section they are in."""
        for token in self._held[:count]:
            if self._state == "call":
                self._call_tokens.append(token)
            else:
                self._show(self._detokenizer.add(token), pieces)
        del self._held[:count]

    def _leave(self, pieces: Pieces, *, ended: bool = True, complete: bool = True) -> None:
        """The section is over, by its marker if it ``ended``: nothing in it stays uncertain."""
        if self._state == "call":
            self._parse(pieces, ended=ended, complete=complete)
            return
        self._show(self._detokenizer.finish(), pieces)
        if self._state == "answer" and pieces.matched is None:
            self._append("answer", self._watcher.flush(), pieces)

    def _show(self, text: str, pieces: Pieces) -> None:
        if pieces.matched is not None:
            return
        if self._strip:
            text = text.lstrip("\n")
            self._strip = not text
        if self._state == "answer":
            text, pieces.matched = self._watcher.feed(text)
            self._append("answer", text, pieces)
        else:
            self._append("thinking", text, pieces)

    @staticmethod
    def _append(section: Section, text: str, pieces: Pieces) -> None:
        if not text:
            return
        if pieces.parts and isinstance(last := pieces.parts[-1], tuple) and last[0] == section:
            pieces.parts[-1] = (section, last[1] + text)
        else:
            pieces.parts.append((section, text))

    def _parse(self, pieces: Pieces, *, ended: bool, complete: bool) -> None:
        text = Vocabulary.of(self._tokenizer).decode(self._call_tokens, hide_special=False)
        self._call_tokens = []
        start, end = self._tokenizer.tool_call_start, self._tokenizer.tool_call_end
        calls: list[ParsedCall] = []
        if ended or complete or not end:
            try:
                found = self._tokenizer.tool_parser(text, self._tools)
                calls = [_parsed(call) for call in (found if isinstance(found, list) else [found])]
            except Exception:
                # The parsers are many and raise what they like on text that is not a call.
                calls = []
        if calls:
            pieces.parts.extend(calls)
        else:
            self._append("answer", f"{start}{text}{end if ended else ''}", pieces)


def _parsed(call: dict[str, Any]) -> ParsedCall:
    name, arguments = call["name"], call.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call needs a name")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ParsedCall(name, arguments, str(call.get("id") or ""))
