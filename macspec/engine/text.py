"""Text of a token stream, piece by piece, equal to decoding the whole at once."""

from __future__ import annotations

import codecs
import random
from collections.abc import Sequence
from typing import Any, Protocol

from macspec.engine.vocabulary import Vocabulary

_PROBES, _PROBE_LENGTH = 4, 24


class Detokenizer:
    """Gives out text as soon as no later token can change it.

    ``add(t1) + … + add(tn) + finish()`` equals ``decode([t1 … tn])`` of the tokenizer, for any tokens: characters
    split over tokens, invalid bytes and ids without a token included. Constant work per token.
    """

    def __init__(self, tokenizer: Any, *, hide_special: bool = True) -> None:
        """``tokenizer`` is mlx-lm's wrapper or a Hugging Face tokenizer; special tokens are left out of the text."""
        vocabulary = Vocabulary.of(tokenizer)
        if not vocabulary.tried:
            _try_out(vocabulary, len(tokenizer))
        self._hidden = vocabulary.special if hide_special else frozenset()
        self._stream = _stream(vocabulary)

    def add(self, token: int) -> str:
        """Text that became certain with ``token``; may be empty."""
        return "" if token in self._hidden else self._stream.add(token)

    def finish(self) -> str:
        """The rest, once no token follows: unfinished characters become U+FFFD."""
        return self._stream.finish()


class _Stream(Protocol):
    def add(self, token: int) -> str: ...

    def finish(self) -> str: ...


def _stream(vocabulary: Vocabulary) -> _Stream:
    if vocabulary.composition == "bytes":
        return _ByteStream(vocabulary)
    if vocabulary.composition == "pieces":
        return _PieceStream(vocabulary)
    return _WindowStream(vocabulary)


def _try_out(vocabulary: Vocabulary, size: int) -> None:
    """Believe a declared composition only if it reproduces the tokenizer's own ``decode`` on random tokens."""
    vocabulary.tried = True
    chooser = random.Random(0)
    for _ in range(_PROBES):
        tokens, stream = [chooser.randrange(size) for _ in range(_PROBE_LENGTH)], _stream(vocabulary)
        if "".join(map(stream.add, tokens)) + stream.finish() != vocabulary.decode(tokens, hide_special=False):
            vocabulary.composition = "opaque"


class _ByteStream:
    """Byte-level vocabularies: an incremental UTF-8 decoder is exact, with the same U+FFFD as the tokenizer's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._raw = vocabulary.raw
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(self._raw(token) or b"")

    def finish(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


class _PieceStream:
    """SentencePiece with byte tokens: a run of those is one text, or all U+FFFD if it is not UTF-8 as a whole."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._run = bytearray()
        self._strips_next = vocabulary.strips_first_space

    def add(self, token: int) -> str:
        if (byte := self._vocabulary.byte(token)) is not None:
            self._run.append(byte)
            return ""
        if (raw := self._vocabulary.raw(token)) is None:
            return ""
        return self._certain(self._take_run() + raw.decode())

    def finish(self) -> str:
        return self._certain(self._take_run())

    def _take_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _certain(self, text: str) -> str:
        if self._strips_next and text:
            self._strips_next = False
            return text.removeprefix(" ")
        return text


class _WindowStream:
    """Any other decoder: decode the last tokens again with each new one, and give out the difference."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._decode = vocabulary.decode
        self._window: list[int] = []
        #: The first tokens of the window, whose text is already given out and only serves as context.
        self._given = 0
        self._given_text = ""

    def add(self, token: int) -> str:
        self._window.append(token)
        text = self._text(self._window)
        if text.endswith("\ufffd") or len(text) <= len(self._given_text):
            return ""
        new = text[len(self._given_text) :]
        self._window = self._window[self._given :]
        self._given, self._given_text = len(self._window), self._text(self._window)
        return new

    def finish(self) -> str:
        rest = self._text(self._window)[len(self._given_text) :]
        self._window, self._given, self._given_text = [], 0, ""
        return rest

    def _text(self, tokens: Sequence[int]) -> str:
        return self._decode(tokens, hide_special=False)
