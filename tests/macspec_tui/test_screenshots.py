"""The command that makes the pictures for the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from macspec_tui import screenshots


def test_usage_and_unknown_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert screenshots.main([]) == screenshots.main(["--help"]) == 2 and not list(tmp_path.iterdir())
    assert screenshots.main([str(tmp_path), "nothing"]) == 2
    assert "answered" in capsys.readouterr().err


def test_pictures_need_nothing_from_the_web() -> None:
    svg = screenshots.self_contained('<svg xmlns="x"><style>@font-face {src: url("https://a")}\n .m {x}</style></svg>')
    assert "https" not in svg and ".m {x}" in svg
