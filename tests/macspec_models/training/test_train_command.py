"""``macspec train``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from macspec import cli
from macspec_models.training.regenerate import pack


def test_export_without_a_checkpoint_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    assert cli.main(["train", "export", "--work", str(work), "--out", str(out)]) == 2
    said = f"macspec: {work} holds no checkpoint to export; train one with: macspec train drafter\n"
    assert capsys.readouterr().err == said
    assert not work.exists() and not out.exists()


@pytest.mark.parametrize(("token", "kind"), [(49_151, np.uint16), (151_000, np.uint32)])
def test_answers_of_any_vocabulary_are_packed(token: int, kind: type, tmp_path: Path) -> None:
    row = {"prompt": 3, "temperature": 0.7, "stopped": True, "tokens": [5, token]}
    (tmp_path / "answers.jsonl").write_text(json.dumps(row) + "\n")
    assert pack(tmp_path / "answers.jsonl", tmp_path / "answers.npz") == 1
    with np.load(tmp_path / "answers.npz") as stored:
        assert stored["tokens"].tolist() == [5, token] and stored["tokens"].dtype == kind
