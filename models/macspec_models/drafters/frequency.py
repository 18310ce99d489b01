"""Which tokens are worth scoring: counts shipped with a pair, and the user's own, kept in a private file.

A head reduced to the frequent tokens makes drafting cheaper and can propose nothing else. No tensors here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from macspec_models.errors import CheckpointError

#: Counts that ship with the embedded pair; made by ``python -m macspec_models.training.token_counts``.
EMBEDDED_COUNTS = Path(__file__).parent.parent / "embedded" / "token_counts.npz"

#: The user's own tokens count this much more than shipped ones: they say what this person's model writes.
OWN_WEIGHT = 4


class TokenCounts:
    """How often each token of a vocabulary was emitted.

    Args:
        shipped: counts that came with the pair ``[vocab]``, or None.
        vocab: size of the vocabulary.
        own: file of the user's own counts; it is created when saved, readable by the user alone. None keeps none.
    """

    def __init__(self, vocab: int, shipped: NDArray[np.int64] | None = None, own: Path | None = None) -> None:
        if shipped is not None and shipped.shape != (vocab,):
            raise CheckpointError(f"The token counts are for a vocabulary of {shipped.size:,}, not of {vocab:,}.")
        self.vocab, self._path = vocab, own
        self._shipped = np.zeros(vocab, np.int64) if shipped is None else shipped.astype(np.int64)
        self._kept, self._fresh = self._stored(), np.zeros(vocab, np.int64)

    def _stored(self) -> NDArray[np.int64]:
        """The private file's counts; a damaged one costs a little speed, not an answer, and is written anew."""
        with contextlib.suppress(CheckpointError):
            if self._path is not None and self._path.exists():
                kept = read_counts(self._path)
                if kept.shape == (self.vocab,):
                    return kept.astype(np.int64)
        return np.zeros(self.vocab, np.int64)

    def _score(self) -> NDArray[np.int64]:
        return self._shipped + OWN_WEIGHT * (self._kept + self._fresh)

    def add(self, tokens: Iterable[int]) -> None:
        """Count emitted tokens; ids outside the vocabulary are refused with ``IndexError``."""
        np.add.at(self._fresh, np.fromiter(tokens, np.int64), 1)

    def rows(self, size: int, always: Iterable[int] = ()) -> NDArray[np.int64]:
        """The ``size`` most frequent token ids, ascending, ``always`` among them.

        Ties go to the lower id, which tokenizers that merge by frequency give to the commoner token.
        """
        if not 0 < size <= self.vocab:
            raise ValueError(f"size must be between 1 and {self.vocab}, not {size}")
        score = self._score()
        score[np.fromiter(always, np.int64)] = np.iinfo(np.int64).max
        return np.sort(np.argsort(-score, kind="stable")[:size])

    def coverage(self, rows: NDArray[np.int64]) -> float:
        """Share of all counted tokens that ``rows`` hold."""
        score = self._score()
        return float(score[rows].sum() / max(1, score.sum()))

    def save(self) -> None:
        """Add what was counted since to the private file, whole or not at all; other processes' counts stay."""
        if self._path is None or not self._fresh.any():
            return
        self._kept, self._fresh = self._stored() + self._fresh, np.zeros(self.vocab, np.int64)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.savez_compressed(file, counts=self._kept.astype(np.uint32))
            partial.replace(self._path)
        finally:
            partial.unlink(missing_ok=True)


def read_counts(path: Path) -> NDArray[np.int64]:
    """Counts ``[vocab]`` from an ``.npz`` file with one array, ``counts``.

    Raises:
        CheckpointError: the file is missing or is no such file.
    """
    try:
        # NumPy leaves a file open that it opened itself and found damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            counts = stored["counts"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise CheckpointError(f"{path} is no file of token counts: {error}.") from error
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise CheckpointError(f"{path} is no file of token counts: it holds {counts.dtype} {list(counts.shape)}.")
    return np.asarray(counts, np.int64)
