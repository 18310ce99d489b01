"""What single tokens of a tokenizer stand for: their bytes, which are special, and how they are put together."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary, proxy

#: ``bytes``: texts of tokens are bytes that are strung together. ``pieces``: SentencePiece with byte tokens.
#: ``opaque``: only the tokenizer's own ``decode`` knows.
Composition = Literal["bytes", "pieces", "opaque"]

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PIECE_STEPS: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP_STEP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

_known: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


class Vocabulary:
    """Read-only facts about a tokenizer, shared by all requests; see `of`."""

    def __init__(self, tokenizer: Any) -> None:
        # What is remembered of a tokenizer must not keep it: a model that goes would leave it behind.
        self._tokenizer: Any = proxy(tokenizer)
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._raw: dict[int, bytes | None] = {}
        #: As the tokenizer declares it; `macspec.engine.text` tries it out before relying on it.
        self.composition: Composition = "opaque"
        self.tried = False
        #: Whether a space at the very beginning of the text is dropped (``pieces`` only).
        self.strips_first_space = False
        if self._backend is None:
            self.special = frozenset(int(token) for token in tokenizer.all_special_ids)
            return
        self.special = frozenset(
            token for token, added in self._backend.get_added_tokens_decoder().items() if added.special
        )
        self.composition, self.strips_first_space = _composition(self._backend.decoder)

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """The vocabulary of an mlx-lm ``TokenizerWrapper`` or Hugging Face tokenizer, made once per tokenizer."""
        if (found := _known.get(tokenizer)) is None:
            found = _known[tokenizer] = cls(tokenizer)
        return found

    def decode(self, tokens: Sequence[int], *, hide_special: bool = True) -> str:
        """Text of all ``tokens`` at once, by the tokenizer itself, without any clean-up of spaces."""
        text: str = self._tokenizer.decode(
            list(tokens), skip_special_tokens=hide_special, clean_up_tokenization_spaces=False
        )
        return text

    def raw(self, token: int) -> bytes | None:
        """UTF-8 bytes a token stands for, perhaps part of a character; None for an id without a token."""
        if token not in self._raw:
            self._raw[token] = self._make_raw(token)
        return self._raw[token]

    def byte(self, token: int) -> int | None:
        """The value of a SentencePiece byte token such as ``<0xF0>``, else None."""
        name = self._name(token)
        match = _BYTE_TOKEN.fullmatch(name) if name is not None else None
        return int(match[1], 16) if match else None

    def _name(self, token: int) -> str | None:
        name: str | None = self._backend.id_to_token(token) if self._backend is not None else None
        return name

    def _make_raw(self, token: int) -> bytes | None:
        if self.composition == "opaque":
            return self.decode([token], hide_special=False).encode("utf-8", "replace")
        name = self._name(token)
        if name is None:
            return None
        if self.composition == "bytes":
            values = [_BYTE_OF.get(character) for character in name]
            # As the decoder does: a token with any other character stands for its own spelling.
            return name.encode() if None in values else bytes(value for value in values if value is not None)
        value = self.byte(token)
        return name.replace(_SPACE, " ").encode() if value is None else bytes([value])


def _composition(decoder: Any) -> tuple[Composition, bool]:
    if decoder is None:
        return "opaque", False
    steps = json.loads(decoder.__getstate__())
    if steps.get("type") == "ByteLevel":
        return "bytes", False
    if steps.get("type") == "Sequence":
        if steps["decoders"] == _PIECE_STEPS:
            return "pieces", False
        if steps["decoders"] == [*_PIECE_STEPS, _STRIP_STEP]:
            return "pieces", True
    return "opaque", False


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones stand for themselves, the others for characters from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(0x100 + number): byte for number, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
