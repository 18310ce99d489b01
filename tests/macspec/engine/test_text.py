"""Text piece by piece equals the text of the whole."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macspec.engine.text import Detokenizer
from macspec.engine.vocabulary import Vocabulary
from tiny_tokenizers import byte_level, sentence_piece, word_pieces

KINDS = {
    "byte level": byte_level,
    "llama 2": lambda: sentence_piece(strip=True),
    "gemma": lambda: sentence_piece(strip=False),
    "word pieces": word_pieces,
}


@cache
def tokenizer(kind: str):
    return KINDS[kind]()


def streamed(tokenizer, tokens) -> str:
    detokenizer = Detokenizer(tokenizer)
    return "".join(map(detokenizer.add, tokens)) + detokenizer.finish()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=250, deadline=None)
def test_any_tokens(kind, data):
    own = tokenizer(kind)
    # A few ids beyond the vocabulary, as models with padded heads can produce them.
    tokens = data.draw(st.lists(st.integers(0, len(own) + 2), max_size=30))
    assert streamed(own, tokens) == own.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte level", "llama 2", "gemma"])
@given(text=st.text(max_size=20), cut=st.lists(st.integers(0, 60), max_size=3), noise=st.binary(max_size=4))
@settings(max_examples=200, deadline=None)
def test_split_characters_and_invalid_bytes(kind, text, cut, noise):
    """Texts byte by byte, with foreign bytes in between."""
    own = tokenizer(kind)
    raw = text.encode("utf-8", "ignore")
    for place in cut:
        raw = raw[:place] + noise + raw[place:]
    first = 0 if kind == "byte level" else own.convert_tokens_to_ids("<0x00>")
    if kind == "byte level":
        spelled = [own.convert_tokens_to_ids(piece) for piece in _spell(raw)]
    else:
        spelled = [first + byte for byte in raw]
    assert streamed(own, spelled) == own.decode(spelled, skip_special_tokens=True)
    if kind == "byte level":
        assert streamed(own, spelled) == raw.decode("utf-8", "replace")


def _spell(raw: bytes) -> list[str]:
    from tiny_tokenizers import byte_alphabet

    spelling = _SPELLING.setdefault("all", byte_alphabet())
    return [spelling[byte] for byte in raw]


_SPELLING: dict[str, dict[int, str]] = {}


def test_a_character_appears_when_its_last_byte_does():
    own = tokenizer("byte level")
    detokenizer = Detokenizer(own)
    tokens = [own.convert_tokens_to_ids(piece) for piece in _spell("a😀é".encode())]
    assert [detokenizer.add(token) for token in tokens] == ["a", "", "", "", "😀", "", "é"]
    assert detokenizer.finish() == ""


def test_an_unfinished_character_is_marked_at_the_end():
    own = tokenizer("byte level")
    tokens = [own.convert_tokens_to_ids(piece) for piece in _spell("a😀".encode()[:-1])]
    detokenizer = Detokenizer(own)
    assert "".join(map(detokenizer.add, tokens)) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_special_tokens_are_hidden_even_inside_a_character():
    own = tokenizer("byte level")
    first, *rest = [own.convert_tokens_to_ids(piece) for piece in _spell("é".encode())]
    end = own.convert_tokens_to_ids("<end>")
    assert streamed(own, [first, end, *rest, end]) == "é"
    shown = Detokenizer(own, hide_special=False)
    assert shown.add(end) == "<end>"


def test_added_tokens_are_spelled_out():
    own = byte_level(added=("<think>", "naïve €"))
    tokens = own.encode("a<think>naïve €b", add_special_tokens=False)
    assert len(tokens) == 4
    assert streamed(own, tokens) == own.decode(tokens) == "a<think>naïve €b"


@pytest.mark.parametrize(
    ("kind", "composition"),
    [("byte level", "bytes"), ("llama 2", "pieces"), ("gemma", "pieces"), ("word pieces", "opaque")],
)
def test_compositions(kind, composition):
    own = tokenizer(kind)
    Detokenizer(own)
    assert Vocabulary.of(own).composition == composition
    assert Vocabulary.of(own) is Vocabulary.of(own)


def test_a_decode_of_its_own_is_not_second_guessed():
    """A tokenizer class that changes decoded text, as mlx-lm's own ``NewlineTokenizer`` does, is found out."""
    from mlx_lm.tokenizer_utils import NewlineTokenizer, TokenizerWrapper

    own = TokenizerWrapper(
        NewlineTokenizer(tokenizer_object=byte_level(added=("<n>",) * 1).backend_tokenizer, eos_token="<end>")
    )
    Detokenizer(own)
    vocabulary = Vocabulary.of(own)
    tokens = [own.convert_tokens_to_ids("<n>"), 5, 6]
    vocabulary.composition = "opaque"
    assert streamed(own, tokens) == own.decode(tokens, skip_special_tokens=True)
    assert streamed(own, tokens).startswith("\n")


def test_raw_bytes_of_single_tokens():
    own = tokenizer("byte level")
    assert Vocabulary.of(own).raw(own.convert_tokens_to_ids(_spell(b"\xf0")[0])) == b"\xf0"
    assert Vocabulary.of(own).raw(len(own) + 5) is None
    pieces = tokenizer("llama 2")
    Detokenizer(pieces)
    assert Vocabulary.of(pieces).raw(pieces.convert_tokens_to_ids("\u2581the")) == b" the"
    assert Vocabulary.of(pieces).raw(pieces.convert_tokens_to_ids("<0xE4>")) == b"\xe4"


@pytest.mark.model
def test_the_embedded_model(smollm):
    own = smollm.tokenizer
    draw = random.Random(0)
    for _ in range(200):
        tokens = [draw.randrange(smollm.vocab_size) for _ in range(draw.randrange(40))]
        assert streamed(own, tokens) == own.decode(tokens, skip_special_tokens=True)
