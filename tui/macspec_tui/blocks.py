"""Cuts Markdown into prose and fenced code, whole or while it streams.

Prose goes to a Markdown widget, code to a block of its own that grows by appending, so that a long listing is never
parsed twice. The same cutter numbers the code blocks that ``/copy 2`` means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

Kind = Literal["prose", "open", "code", "close"]

#: Up to three spaces, three or more of one fence character, an info string.
_OPENING = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*([^\n]*)")
#: What may still become an opening while a line is incomplete.
_MAYBE = re.compile(r" {0,3}(`*|~*|(`{3,}|~{3,}).*)$")


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to append: prose or code text, or the start (``text`` is the language) or end of a code block."""

    kind: Kind
    text: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A run of prose (``language`` is None) or one code block."""

    text: str
    language: str | None = None


class Cutter:
    """Feed it text as it comes; it returns what can be shown for certain and holds back what may become a fence."""

    def __init__(self) -> None:
        self._held = ""
        self._line_shown = False
        self._fence: tuple[int, str] | None = None

    def feed(self, text: str) -> Iterator[Piece]:
        """Pieces that ``text`` completes."""
        self._held += text
        while (end := self._held.find("\n")) >= 0:
            line, self._held = self._held[: end + 1], self._held[end + 1 :]
            yield from self._line(line)
            self._line_shown = False
        if self._held and not self._undecided():
            yield Piece("code" if self._fence else "prose", self._dedent(self._held))
            self._held, self._line_shown = "", True

    def finish(self) -> Iterator[Piece]:
        """What is left at the end of the text; a block left open is closed."""
        if self._held:
            held, self._held = self._held, ""
            yield from self._line(held)
        if self._fence is not None:
            self._fence = None
            yield Piece("close")

    def _line(self, line: str) -> Iterator[Piece]:
        if self._line_shown:
            yield Piece("code" if self._fence else "prose", line)
        elif self._fence is not None:
            if self._closes(line):
                self._fence = None
                yield Piece("close")
            else:
                yield Piece("code", self._dedent(line))
        elif opening := _OPENING.fullmatch(line.rstrip("\n")):
            self._fence = (len(opening[1]), opening[2])
            yield Piece("open", opening[3].split()[0] if opening[3].split() else "")
        else:
            yield Piece("prose", line)

    def _undecided(self) -> bool:
        """Whether the incomplete line may turn out to be a fence."""
        if self._line_shown:
            return False
        if self._fence is None:
            return _MAYBE.match(self._held) is not None
        bare = self._held.strip(" ")
        return set(bare) <= {self._fence[1][0]}

    def _closes(self, line: str) -> bool:
        assert self._fence is not None  # callers checked
        mark = self._fence[1]
        bare = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        return indent <= 3 and len(bare) >= len(mark) and set(bare) == {mark[0]}

    def _dedent(self, line: str) -> str:
        """Code in an indented fence loses as many spaces as the fence has."""
        if self._fence is None or self._line_shown:
            return line
        spaces = len(line) - len(line.lstrip(" "))
        return line[min(spaces, self._fence[0]) :]


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces with neighbours of one kind as one: each that is shown costs a parse and a layout."""
    for kind, group in groupby(pieces, key=lambda piece: piece.kind):
        if kind in ("prose", "code"):
            yield Piece(kind, "".join(piece.text for piece in group))
        else:
            yield from group


def split(text: str) -> list[Block]:
    """The prose and code blocks of a finished text, in order; prose of blank lines only is left out."""
    blocks: list[Block] = []
    language: str | None = None
    parts: list[str] = []

    def end() -> None:
        body = "".join(parts)
        if language is not None or body.strip():
            blocks.append(Block(body.removesuffix("\n") if language is not None else body.strip("\n"), language))
        parts.clear()

    cutter = Cutter()
    for piece in (*cutter.feed(text), *cutter.finish()):
        if piece.kind == "open":
            end()
            language = piece.text
        elif piece.kind == "close":
            end()
            language = None
        else:
            parts.append(piece.text)
    end()
    return blocks


def code_blocks(text: str) -> list[Block]:
    """Only the code blocks of a text, in order."""
    return [block for block in split(text) if block.language is not None]
