"""The pictures for the documentation can be made, in every size and look."""

from __future__ import annotations

from pathlib import Path

import pytest

from macspec_tui import screenshots


def test_usage_and_unknown_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert screenshots.main([]) == 2
    assert screenshots.main([str(tmp_path), "nothing"]) == 2
    assert "answered" in capsys.readouterr().err


async def test_one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    svg = await screenshots.shoot("answered", (120, 40), "dark")
    for words in ("fibonacci", "Rounds", "Cost", "Qwen3-8B-4bit"):
        assert words in svg


@pytest.mark.slow
def test_all_pictures(tmp_path: Path) -> None:
    assert screenshots.main([str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.svg"))) == len(screenshots.POSES) * 9
