"""Which head rows are worth keeping: shipped counts and the user's own."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from macspec_models.drafters.frequency import OWN_WEIGHT, TokenCounts, read_counts
from macspec_models.errors import CheckpointError


def test_rows_are_the_commonest_ascending() -> None:
    counts = TokenCounts(6, np.array([5, 0, 9, 5, 1, 0]))
    assert counts.rows(1).tolist() == [2]
    assert counts.rows(2).tolist() == [0, 2]
    assert counts.rows(3, always=[5]).tolist() == [0, 2, 5]
    assert counts.rows(6).tolist() == [0, 1, 2, 3, 4, 5]
    assert counts.coverage(counts.rows(2)) == pytest.approx(14 / 20)


@pytest.mark.parametrize("size", [0, 7])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 6"):
        TokenCounts(6).rows(size)


def test_own_tokens_move_the_ranking_and_are_kept_privately(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "counts.npz"
    counts = TokenCounts(4, np.array([8, 7, 0, 0]), path)
    counts.add([3, 3, 3])
    assert 3 * OWN_WEIGHT > 8
    assert counts.rows(1).tolist() == [3]
    counts.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["counts.npz"]
    again = TokenCounts(4, np.array([8, 7, 0, 0]), path)
    assert again.rows(1).tolist() == [3]
    assert TokenCounts(4, np.array([8, 7, 0, 0])).rows(1).tolist() == [0]


def test_two_processes_that_count_at_once_both_count(tmp_path: Path) -> None:
    path = tmp_path / "counts.npz"
    one, other = (TokenCounts(4, own=path) for _ in range(2))
    one.add([0, 0, 1])
    other.add([1, 1])
    one.save()
    other.save()
    one.save()  # nothing new: nothing counts twice
    assert read_counts(path).tolist() == [2, 3, 0, 0]


def test_damaged_or_foreign_private_files_count_nothing(tmp_path: Path) -> None:
    path = tmp_path / "counts.npz"
    path.write_bytes(b"PK\x03\x04 no archive")
    assert TokenCounts(3, np.array([1, 2, 3]), path).rows(1).tolist() == [2]
    np.savez_compressed(path, counts=np.array([9, 9, 9, 9, 99]))
    assert TokenCounts(3, np.array([1, 2, 3]), path).rows(1).tolist() == [2]


def test_shipped_counts_must_fit_and_be_counts(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="vocabulary of 2, not of 3"):
        TokenCounts(3, np.array([1, 2]))
    for name, arrays in {"other": {"x": np.ones(3, int)}, "floats": {"counts": np.ones(3)}}.items():
        np.savez_compressed(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(CheckpointError, match="no file of token counts"):
            read_counts(tmp_path / f"{name}.npz")
    with pytest.raises(CheckpointError, match="no file of token counts"):
        read_counts(tmp_path / "missing.npz")


def test_tokens_outside_the_vocabulary_are_not_counted() -> None:
    with pytest.raises(IndexError):
        TokenCounts(3).add([3])
