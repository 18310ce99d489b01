"""The pair that works without a network: SmolLM2-135M-Instruct and the drafter trained for it here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from macspec_models.embedded.convert import target_folder

#: Name of the embedded pair wherever a model is asked for.
NAME = "smollm2-135m"


def drafter_folder() -> Path:
    """Folder of the embedded drafter, in the published DFlash layout."""
    return Path(__file__).parent / "drafter"


def frequent_tokens(count: int) -> NDArray[np.int64]:
    """The token ids the target writes most often, ascending; the counts ship with the pair."""
    from macspec_models.drafters.frequency import TokenCounts, read_counts

    counts = read_counts(Path(__file__).parent / "token_counts.npz")
    return TokenCounts(counts.size, counts).rows(count)


__all__ = ["NAME", "drafter_folder", "frequent_tokens", "target_folder"]
