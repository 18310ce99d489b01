"""Whether a drafter was trained on its target's tokens: the same ids must mean the same pieces of text. No MLX here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macspec_models.checkpoint_files import read_json
from macspec_models.errors import CheckpointError

#: Field of a drafter's config with the hash of its target's vocabulary.
HASH_FIELD = "target_vocabulary_sha256"
#: Share of common ids that may name other tokens: conversions rename a special token now and then, and another
#: tokenizer of the same size differs nearly everywhere.
TOLERATED = 0.01
_LARGEST = 200_000_000


def vocabulary_hash(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 over all tokens in order of their ids, whatever file they came from."""
    digest = hashlib.sha256()
    for token, number in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{number}\t{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_vocabulary(folder: Path, raw: Mapping[str, Any], target: Any) -> None:
    """Refuse a drafter whose folder tells of another vocabulary than the target's; most tell nothing.

    Args:
        folder: the drafter's; a ``tokenizer.json`` in it is compared, token by token.
        raw: its config, which may name the hash of its target's vocabulary.
        target: with its ``tokenizer``.

    Raises:
        CheckpointError: they differ, or the folder's tokenizer cannot be read.
    """
    wanted, file = raw.get(HASH_FIELD), folder / "tokenizer.json"
    if wanted is None and not file.is_file():
        return
    known: Mapping[str, int] = target.tokenizer.get_vocab()
    refusal = CheckpointError(
        f"{folder}: this drafter was trained on other tokens than {target.name} has, although both have as many. "
        "Choose the drafter made for this model."
    )
    if wanted is not None and wanted != vocabulary_hash(known):
        raise refusal
    if wanted is None:
        theirs = {number: token for token, number in read_vocabulary(file).items()}
        both = [(theirs[number], token) for token, number in known.items() if number in theirs]
        if sum(one != two for one, two in both) > TOLERATED * max(1, len(both)) or not both:
            raise refusal


def read_vocabulary(file: Path) -> dict[str, int]:
    """Token ids by token from a ``tokenizer.json``, added tokens included.

    Raises:
        CheckpointError: it is no such file.
    """
    raw = read_json(file, largest=_LARGEST)
    try:
        pieces = raw["model"]["vocab"]
        # Unigram models list their pieces with scores, the others map them to ids.
        found = dict(pieces) if isinstance(pieces, dict) else {piece[0]: i for i, piece in enumerate(pieces)}
        found.update((entry["content"], entry["id"]) for entry in raw.get("added_tokens") or [])
    except (KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{file} has no vocabulary. Download it again.") from error
    if not all(isinstance(token, str) and type(number) is int for token, number in found.items()):
        raise CheckpointError(f"{file} has a vocabulary that is no map from tokens to ids. Download it again.")
    return found
