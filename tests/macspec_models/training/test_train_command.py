"""``macspec train``."""

from __future__ import annotations

from pathlib import Path

import pytest

from macspec import cli


def test_export_without_a_checkpoint_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    assert cli.main(["train", "export", "--work", str(work), "--out", str(out)]) == 2
    said = f"macspec: {work} holds no checkpoint to export; train one with: macspec train drafter\n"
    assert capsys.readouterr().err == said
    assert not work.exists() and not out.exists()
