"""Token ids of texts that begin like earlier ones: only what is new is tokenised, so that a long chat costs no more.

A special token ends whatever stands before it: no token reaches across, so a text may be cut in front of one and its
parts tokenised apart.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, proxy

#: Texts remembered, one per conversation that is being held.
MAX_TEXTS = 8
#: What tokenizers change in ways of their own: spaces, line breaks, capitals, digits, accents, ligatures.
_PROBE = " Aa\n\n\tb  12 \u00e9e\u0301\ufb01\u4f60\r\n"


@dataclass(frozen=True, slots=True)
class KnownText:
    """A text with its ``tokens``; ``cuts``: (characters, tokens) before each special token, and where it ends."""

    text: str
    tokens: list[int]
    cuts: list[tuple[int, int, int]]

    def shared(self, text: str) -> tuple[int, int]:
        """Characters and tokens before the last special token up to whose end ``text`` is the same; else (0, 0)."""
        same = bisect_left(self.cuts, True, key=lambda cut: not text.startswith(self.text[: cut[2]]))
        return self.cuts[same - 1][:2] if same else (0, 0)


class RepeatedText:
    """Tokenises without adding special tokens, as the tokenizer itself does; see `of`."""

    def __init__(self, tokenizer: Any) -> None:
        # What is remembered of a tokenizer must not keep it: a model that goes would leave it behind.
        self._tokenizer: Any = proxy(tokenizer)
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._known: list[KnownText] = []  # least recently used first
        self._cutting: dict[int, str] = {}
        if self._backend is not None:
            self._cutting = {
                token: added.content
                for token, added in self._backend.get_added_tokens_decoder().items()
                if added.special and not (added.normalized or added.lstrip or added.rstrip or added.single_word)
            }

    @classmethod
    def of(cls, tokenizer: Any) -> RepeatedText:
        """What is remembered for an mlx-lm ``TokenizerWrapper`` or Hugging Face tokenizer."""
        if tokenizer not in _of_tokenizer:
            _of_tokenizer[tokenizer] = cls(tokenizer)
        return _of_tokenizer[tokenizer]

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""
        if self._backend is None:
            return self._whole(text)
        nearest = max(self._known, key=lambda known: known.shared(text), default=_NOTHING)
        characters, count = nearest.shared(text)
        tokens, found = self._part(text[characters:])
        if not self._known and (tokens != self._whole(text) or self._part(_PROBE)[0] != self._whole(_PROBE)):
            # Tried out before it is relied on: what is around the backend has a way of its own.
            self._backend = None
            return self._whole(text)
        cuts = [cut for cut in nearest.cuts if cut[0] < characters]
        cuts += [(characters + start, count + number, characters + end) for start, number, end in found]
        made = KnownText(text, nearest.tokens[:count] + tokens, cuts)
        others = [known for known in self._known if not count or known is not nearest]
        self._known = [*others[-(MAX_TEXTS - 1) :], made]
        return list(made.tokens)

    def _whole(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _part(self, text: str) -> tuple[list[int], list[tuple[int, int, int]]]:
        """Token ids of a part of a text, and its cuts."""
        if self._backend.truncation is not None:
            self._backend.no_truncation()
        if self._backend.padding is not None:
            self._backend.no_padding()
        new = self._backend.encode(text, add_special_tokens=False)
        cuts = [
            (start, number, end)
            for number, (token, (start, end)) in enumerate(zip(new.ids, new.offsets, strict=True))
            # The token for what is unknown is special too, and stands within other text.
            if text[start:end] == self._cutting.get(token)
        ]
        return list(new.ids), cuts


_NOTHING = KnownText("", [], [])
_of_tokenizer: WeakKeyDictionary[Any, RepeatedText] = WeakKeyDictionary()
