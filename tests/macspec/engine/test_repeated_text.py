"""Tokenising only what is new gives what tokenising everything does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import NewlineTokenizer, TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from macspec.engine.repeated_text import MAX_TEXTS, RepeatedText
from tiny_tokenizers import WORDS, byte_level, sentence_piece, word_pieces

SPECIALS = ("<end>", "<user>", "<user", "<wide>")


def prefixed() -> Any:
    """A Llama-2 style normaliser, which puts a space in front of every stretch of text."""
    pieces = ["<unk>", *sorted(set("".join(WORDS) + "\u2581abcdefgh<>/"))]
    tokenizer = Tokenizer(models.BPE(vocab={p: n for n, p in enumerate(pieces)}, merges=[], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581"), normalizers.NFKC()]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=text == "<wide>") for text in SPECIALS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def spaced() -> Any:
    """Words with a visible space only at the very beginning, and special tokens that swallow spaces."""
    made = prefixed()
    backend = made.backend_tokenizer
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.add_special_tokens([AddedToken("<left>", special=True, normalized=False, lstrip=True, rstrip=True)])
    return made


def unknowing() -> Any:
    """A model without byte tokens, whose special token for unknown characters stands within words."""
    pieces = [("<unk>", 0.0), *((piece, -3.0) for piece in "\u2581abcdefgh"), ("\u2581a", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", *SPECIALS)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", clean_up_tokenization_spaces=False)


TOKENIZERS = {
    "bytes": byte_level(SPECIALS, ("<added>",)),
    "pieces": sentence_piece(strip=True, specials=SPECIALS),
    "opaque": word_pieces(),
    "prefixed": prefixed(),
    "spaced": spaced(),
    "unknowing": unknowing(),
}
parts = st.lists(
    st.sampled_from(
        [*SPECIALS, *WORDS, "<left>", "<added>", " ", "  a", "<", "user", "> b", "[END]", "play", "\ufb01"]
    ),
    max_size=12,
)


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(st.integers(0, 30), parts), min_size=2, max_size=6))
def test_any_sequence_of_texts(kind: str, turns: list[tuple[int, list[str]]]) -> None:
    """Each text keeps some of the one before and goes on with something else."""
    own, text = TOKENIZERS[kind], "<user>"
    repeated = RepeatedText(own)
    for kept, more in turns:
        text = text[: len(text) - kept] if kept < len(text) else text
        text += "".join(more)
        assert repeated.encode(text) == list(own.encode(text, add_special_tokens=False))


def test_only_what_is_new_is_tokenised() -> None:
    repeated = RepeatedText(TOKENIZERS["bytes"])
    history = "<user>Hello world<end>" * 50
    repeated.encode(history)
    seen: list[str] = []
    part = repeated._part
    repeated._part = lambda text: seen.append(text) or part(text)  # type: ignore[method-assign, func-returns-value]
    repeated.encode(history + "<user>the END<end>")
    assert seen == ["<end><user>the END<end>"]


def test_conversations_take_turns_and_old_ones_are_forgotten() -> None:
    repeated = RepeatedText(TOKENIZERS["bytes"])
    for turn in range(3):
        for chat in range(MAX_TEXTS + 2):
            repeated.encode(f"<user>{chat}<end>" + "<user>the<end>" * turn)
    assert len(repeated._known) == MAX_TEXTS


def test_a_tokenizer_with_a_way_of_its_own_is_used_as_it_is() -> None:
    class Reversing:
        backend_tokenizer = TOKENIZERS["bytes"].backend_tokenizer

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return TOKENIZERS["bytes"].encode(text, add_special_tokens=add_special_tokens)[::-1]

    own = Reversing()
    repeated = RepeatedText(own)
    for text in ("<user>Hello<end>", "<user>Hello<end><user>the<end>"):
        assert repeated.encode(text) == own.encode(text, add_special_tokens=False)


def test_a_way_of_its_own_counts_also_where_the_first_text_does_not_show_it() -> None:
    """mlx-lm has a tokenizer that writes line breaks in another way."""
    own = TokenizerWrapper(NewlineTokenizer(tokenizer_object=byte_level(SPECIALS).backend_tokenizer))
    repeated = RepeatedText(own)
    for text in ("<user>Hello<end>", "<user>Hello\nworld<end>", "<user>Hello\nworld<end><user>\n<end>"):
        assert repeated.encode(text) == own.encode(text, add_special_tokens=False)


def test_truncation_and_padding_of_the_file_are_not_applied() -> None:
    own = byte_level(SPECIALS)
    own.backend_tokenizer.enable_truncation(4)
    own.backend_tokenizer.enable_padding(length=90)
    text = "<user>Hello world<end>" * 3
    assert RepeatedText(own).encode(text) == byte_level(SPECIALS).encode(text, add_special_tokens=False)
