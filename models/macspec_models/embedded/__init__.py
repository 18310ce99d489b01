"""The pair that works without a network: SmolLM2-135M-Instruct and the drafter trained for it here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from macspec_models.drafters.frequency import EMBEDDED_COUNTS, TokenCounts, read_counts
from macspec_models.embedded.convert import target_folder

#: Name of the embedded pair wherever a model is asked for.
NAME = "smollm2-135m"
#: Rows of the target's head its drafter scores, the most frequent tokens; `benchmarks/draft_head.py` compares others.
HEAD_ROWS = 8192


def drafter_folder() -> Path:
    """Folder of the embedded drafter, in the published DFlash layout."""
    return Path(__file__).parent / "drafter"


def token_counts(own: Path | None = None) -> TokenCounts:
    """How often the target writes each token: counts that ship with the pair, with the user's own from a file."""
    shipped = read_counts(EMBEDDED_COUNTS)
    return TokenCounts(shipped.size, shipped, own)


def frequent_tokens(count: int) -> NDArray[np.int64]:
    """The token ids the target writes most often, ascending; the counts ship with the pair."""
    return token_counts().rows(count)


__all__ = ["HEAD_ROWS", "NAME", "drafter_folder", "frequent_tokens", "target_folder", "token_counts"]
