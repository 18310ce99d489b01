from __future__ import annotations

import json
from pathlib import Path

import pytest

from macspec.doctor import facts
from macspec.engine.row_noise import RowNoise
from macspec.profiling.row_noise import FILE, RowNoiseStore, noise_identity

PAIR = {"chip": "c", "target": "t", "dtype": "float16", "depth": 7, "drafter": "d", "python": "3.12"}
NOISE = RowNoise(largest=0.25, compared=80, max_rows=8, density=0.5, tokens=1000, near_ties=3)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    store = RowNoiseStore(tmp_path)
    key = noise_identity(PAIR, "mlx", None)
    assert store.load(key) is None
    store.save(key, NOISE)
    store.save(noise_identity(PAIR, "mlx", 4), RowNoise(0.0, 80, 8, 1.0))
    assert RowNoiseStore(tmp_path).load(key) == NOISE


@pytest.mark.parametrize(
    ("part", "value"), [("mlx", "1.0"), ("dtype", "bfloat16"), ("depth", 15), ("chip", "x"), ("target_bytes", 9)]
)
def test_it_belongs_to_the_target_and_the_machine(tmp_path: Path, part: str, value: object) -> None:
    store = RowNoiseStore(tmp_path)
    store.save(noise_identity(PAIR, "mlx", None), NOISE)
    assert store.load(noise_identity({**PAIR, part: value}, "mlx", None)) is None
    assert store.load(noise_identity(PAIR, "mlx+verify_qmm exact", None)) is None
    assert store.load(noise_identity({**PAIR, "drafter": "other"}, "mlx", None)) == NOISE


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 0, "measured": {}}', '{"schema": 1, "measured": 3}'])
def test_a_damaged_file_means_measuring_again(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    store, key = RowNoiseStore(tmp_path), noise_identity(PAIR, "mlx", None)
    assert store.load(key) is None
    store.save(key, NOISE)
    assert store.load(key) == NOISE


def test_a_damaged_entry_means_measuring_again(tmp_path: Path) -> None:
    store, key = RowNoiseStore(tmp_path), noise_identity(PAIR, "mlx", None)
    store.save(key, NOISE)
    values = json.loads(store.path.read_text())
    next(iter(values["measured"].values()))["largest"] = None
    store.path.write_text(json.dumps(values))
    assert store.load(key) is None


def test_doctor_reads_the_same_file() -> None:
    assert facts.ROW_NOISE_FILE == FILE
