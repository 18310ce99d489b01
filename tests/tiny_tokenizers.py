"""Small tokenizers of every kind, made in memory."""

from __future__ import annotations

from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPACE = "\u2581"
#: Tokens of several characters that byte-level and SentencePiece vocabularies get besides single bytes.
WORDS = ("the", " the", "He", "llo", " world", "\n\n", "é", "你", "好", "😀", '{"', '": ', '"}', "true", " END", "  ")


def byte_alphabet() -> dict[int, str]:
    """Spelling of bytes in byte-level vocabularies, computed independently of the code under test."""
    spelled = {}
    for byte in range(256):
        text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))[0][0]
        spelled[chr(byte).encode()] = text
    letters = "".join(spelled.values())
    pairs = {}
    for raw, text in spelled.items():
        pairs.update(zip(raw, text, strict=True))
    missing = iter(sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(letters)))
    return {byte: pairs[byte] if byte in pairs else next(missing) for byte in range(256)}


def byte_level(specials: tuple[str, ...] = ("<end>",), added: tuple[str, ...] = (), **options: Any) -> TokenizerWrapper:
    """A GPT-2 style tokenizer: all bytes, a few words, pieces of characters."""
    spelling = byte_alphabet()
    pieces = [spelling[byte] for byte in range(256)]
    pieces += ["".join(spelling[byte] for byte in word.encode()) for word in WORDS]
    pieces += ["".join(spelling[byte] for byte in part) for part in (b"\xf0\x9f", b"\x98\x80", b"\xe4\xbd", b"a\xe4")]
    tokenizer = Tokenizer(models.BPE(vocab={p: n for n, p in enumerate(dict.fromkeys(pieces))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer, specials, added, **options)


def sentence_piece(*, strip: bool, specials: tuple[str, ...] = ("</s>",), **options: Any) -> TokenizerWrapper:
    """A Llama-2 (``strip``) or Gemma style tokenizer: words with a visible space, and byte tokens."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE]
    pieces += [word.replace(" ", SPACE) for word in WORDS] + list("abcdefghijklmnopqrstuvwxyz.,!?")
    unique = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=unique, merges=[], unk_token="<unk>", byte_fallback=True))
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return _wrapped(tokenizer, specials, (), **options)


def word_pieces() -> TokenizerWrapper:
    """A BERT style tokenizer, whose decoder nothing here knows."""
    pieces = ["[UNK]", "play", "##ing", "##s", "a", "cat", ".", "##.", "[END]"]
    tokenizer = Tokenizer(models.WordPiece(vocab={p: n for n, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return _wrapped(tokenizer, ("[END]",), ())


def _wrapped(tokenizer: Tokenizer, specials: tuple[str, ...], added: tuple[str, ...], **options: Any) -> Any:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=specials[0], clean_up_tokenization_spaces=False
    )
    return TokenizerWrapper(fast, **options)
