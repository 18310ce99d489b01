from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.dflash import DFlashNetwork
from macspec_models.errors import CheckpointError
from macspec_models.training.export import export_drafter
from macspec_models.vocabulary import HASH_FIELD, read_vocabulary, vocabulary_hash
from tiny_drafters import TinyTarget, write_dflash

TOKENS = {f"t{number}": number for number in range(97)}
OTHERS = {f"t{(number * 5 + 1) % 97}": number for number in range(97)}


def target(tokens: dict[str, int] = TOKENS) -> Any:
    found: Any = TinyTarget()
    found.tokenizer = SimpleNamespace(get_vocab=lambda: tokens)
    return found


def tokenizer_file(tokens: dict[str, int], **added: int) -> str:
    extra = [{"id": number, "content": token} for token, number in added.items()]
    return json.dumps({"model": {"type": "BPE", "vocab": tokens}, "added_tokens": extra})


def test_the_hash_knows_ids_and_not_the_order_of_a_file() -> None:
    assert vocabulary_hash(TOKENS) == vocabulary_hash(dict(reversed(TOKENS.items())))
    assert len({vocabulary_hash(TOKENS), vocabulary_hash(OTHERS), vocabulary_hash({**TOKENS, "more": 97})}) == 3


def test_a_drafter_of_other_tokens_is_refused_by_its_hash(tmp_path: Path) -> None:
    write_dflash(tmp_path)
    drafter = load_drafter(tmp_path, target())
    assert isinstance(drafter.network, DFlashNetwork)
    export_drafter(drafter.network, tmp_path / "out", TOKENS)
    assert HASH_FIELD in json.loads((tmp_path / "out" / "config.json").read_text())
    load_drafter(tmp_path / "out", target())
    with pytest.raises(CheckpointError, match="trained on other tokens than tiny has"):
        load_drafter(tmp_path / "out", target(OTHERS))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (tokenizer_file(TOKENS, mask=97), ""),
        (tokenizer_file({("renamed" if n == 3 else t): n for t, n in TOKENS.items()}), "trained on other"),
        (tokenizer_file(OTHERS), "trained on other"),
        (json.dumps({"model": {"type": "Unigram", "vocab": [[token, -1.0] for token in TOKENS]}}), ""),
        (tokenizer_file({}), "trained on other"),
        ("{}", "has no vocabulary"),
        (json.dumps({"model": {"vocab": {"a": "b"}}}), "no map from tokens to ids"),
        (json.dumps({"model": {"vocab": [3]}}), "has no vocabulary"),
        ("[", "not valid JSON"),
    ],
)
def test_a_tokenizer_beside_the_drafter_is_compared(content: str, sentence: str, tmp_path: Path) -> None:
    write_dflash(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    if not sentence:
        load_drafter(tmp_path, target())
        return
    with pytest.raises(CheckpointError, match=sentence):
        load_drafter(tmp_path, target())


def test_one_renamed_token_of_many_is_tolerated(tmp_path: Path) -> None:
    """A conversion may have renamed a special token; more than one in a hundred is another tokenizer."""
    write_dflash(tmp_path)
    many = {f"t{number}": number for number in range(300)}
    (tmp_path / "tokenizer.json").write_text(tokenizer_file({("<eos>" if n == 7 else t): n for t, n in many.items()}))
    load_drafter(tmp_path, target(many))


def test_added_tokens_count(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer_file({"a": 0}, b=1))
    assert read_vocabulary(file) == {"a": 0, "b": 1}
