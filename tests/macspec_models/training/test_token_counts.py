"""Counting the training answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from macspec_models.drafters.frequency import EMBEDDED_COUNTS, read_counts
from macspec_models.training.responses import HELD_OUT
from macspec_models.training.token_counts import count_answers


def test_held_out_and_short_answers_are_not_counted(tmp_path: Path) -> None:
    answers = [[1] * 12, [2] * 11, *[[3] * 12] * (HELD_OUT - 1), [4] * 13, [5] * 12]
    offsets = np.cumsum([0, *map(len, answers)])
    np.savez(tmp_path / "a.npz", offset=offsets.astype(np.uint32), tokens=np.concatenate(answers).astype(np.uint16))
    counts = count_answers(tmp_path / "a.npz", 6)
    # The first and the fortieth answer that is long enough are held out; the second is too short.
    assert counts.tolist() == [0, 0, 0, 12 * (HELD_OUT - 1), 0, 12]


def test_shipped_counts_are_of_the_embedded_vocabulary() -> None:
    counts = read_counts(EMBEDDED_COUNTS)
    assert counts.shape == (49152,)
    assert (counts > 0).sum() > 5000
