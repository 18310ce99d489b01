"""Constrains answers to a grammar: token masks for every row along a draft, by llguidance."""

from __future__ import annotations

import json
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

import llguidance
import numpy as np
from numpy.typing import NDArray

from macspec.errors import RequestError, UnsupportedError
from macspec.request import Grammar

Mask = NDArray[np.bool_]

_tokenizers: WeakKeyDictionary[Any, dict[tuple[int, frozenset[int]], llguidance.LLTokenizer]] = WeakKeyDictionary()


class GrammarState:
    """Where an answer is in its grammar."""

    def __init__(self, grammar: Grammar, tokenizer: Any, vocab: int, eos: frozenset[int]) -> None:
        """Compile ``grammar`` for a tokenizer (mlx-lm's wrapper or a fast Hugging Face one).

        Raises:
            RequestError: it is invalid, or nothing can satisfy it; ``param`` is ``grammar``.
            UnsupportedError: the model's tokenizer does not say how its tokens are spelled.
        """
        self._kind, self._vocab = grammar.kind, vocab
        known = _ll_tokenizer(tokenizer, vocab, eos)
        self._matcher = llguidance.LLMatcher(known, _definition(grammar), log_level=0)
        if self._matcher.is_error():
            raise self._refused(self._matcher.get_error())
        if self._matcher.is_stopped() and not self._matcher.is_accepting():
            raise self._refused("no text satisfies it")
        self._bits = np.zeros((known.vocab_size + 31) // 32, dtype=np.uint32)
        if not self.finished and not self.mask().any():
            raise self._refused("no token of this model can begin it")

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> Mask:
        """Which tokens may come next: ``[vocab]``. End-of-sequence tokens are among them where the text may end."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            raise self._refused(f"it became too complex to follow: {_sentence(self._matcher.get_error())}")
        mask: Mask = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._vocab).view(np.bool_)
        return mask

    def take(self, token: int) -> bool:
        """Advance by one token; False, and nothing changes, when the grammar does not allow it here."""
        return bool(self._matcher.try_consume_tokens([token]) == 1)

    def undo(self, tokens: int) -> None:
        """Go back by as many tokens."""
        if tokens and not self._matcher.rollback(tokens):
            raise RuntimeError("The grammar could not be rolled back.")

    def _refused(self, why: str) -> RequestError:
        return RequestError(f"The {self._kind} cannot be used: {_sentence(why)}.", param="grammar")


def _definition(grammar: Grammar) -> str:
    """Llguidance's form of a grammar."""
    matcher, value = llguidance.LLMatcher, grammar.value
    definition: str
    try:
        match grammar.kind:
            case "json_object":
                definition = matcher.grammar_from_json_schema('{"type": "object"}')
            case "json_schema":
                definition = matcher.grammar_from_json_schema(json.loads(value))
            case "regex":
                definition = matcher.grammar_from_regex(value)
            case "choice":
                definition = matcher.grammar_from_lark("start: " + " | ".join(_literals(value)))
            case "lark":
                definition = matcher.grammar_from_lark(value)
            case unknown:
                raise ValueError(f"there is no kind {unknown!r}; use json_schema, json_object, regex, choice or lark")
    except ValueError as error:
        raise RequestError(f"The {grammar.kind} cannot be used: {_sentence(str(error))}.", param="grammar") from error
    return definition


def _literals(value: str) -> list[str]:
    choices = json.loads(value)
    if not isinstance(choices, list) or not choices:
        raise ValueError("it must be a JSON list with at least one text")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError("every choice must be a text of at least one character")
    return [json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(choices)]


def _ll_tokenizer(tokenizer: Any, vocab: int, eos: frozenset[int]) -> llguidance.LLTokenizer:
    """Made once per tokenizer: it takes about half a second."""
    made = _tokenizers.setdefault(tokenizer, {})
    key = (vocab, eos)
    if key not in made:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedError(
                "This model's tokenizer is of a kind that grammars do not work with; leave the grammar out.",
                param="grammar",
            )
        plain = copy(backend)
        plain.no_padding()
        plain.no_truncation()
        size = max(vocab, plain.get_vocab_size(with_added_tokens=True))
        try:
            made[key] = llguidance.LLTokenizer(plain.to_str(), n_vocab=size, eos_token=sorted(eos) or None)
        except ValueError as error:
            raise UnsupportedError(
                f"Grammars do not work with this model's tokenizer: {_sentence(str(error))}.", param="grammar"
            ) from error
    return made[key]


def _sentence(text: str) -> str:
    """The first lines of a library's message as one line without its full stop."""
    return " ".join(text.split())[:300].rstrip(". ")
