from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from macspec.bench import schema
from macspec.doctor.first_run import FORMAT, first_run
from tiny_drafters import write_dflash
from tiny_engine import write_target


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_one_file_has_everything(home: Path) -> None:
    target = write_target(home / "target")
    write_dflash(home / "drafter", json.loads((target / "config.json").read_text()))
    said: list[str] = []
    pair = {"model": str(target), "drafter": str(home / "drafter")}
    result = first_run(pair, lambda: {"broken": False}, said.append, home / "state/first.json")
    assert json.loads((home / "state/first.json").read_text()) == json.loads(json.dumps(result))
    assert result["format"] == FORMAT and not result["failures"]
    assert result["load"]["model"] == "target" and "kernels" in result["load"]
    assert result["profile"]["ladder"]["contexts"]
    jsonschema.validate(json.loads(json.dumps(result["bench"])), schema.schema())
    arms = {row["arm"]: row for row in result["bench"]["results"] if row["category"] == "all"}
    assert list(arms) == ["plain", "mlx_lm", "full", "auto"]
    assert arms["full"]["identical"] and arms["mlx_lm"]["identical"]
    told = "\n".join(said)
    assert "Loaded target" in told and "rows" in told and "× plain" in told and "first.json" in told


def test_without_a_drafter_nothing_is_profiled(home: Path) -> None:
    pair = {"model": str(write_target(home / "target")), "drafter": "none"}
    result = first_run(pair, dict, lambda text: None, home / "first.json")
    assert not result["failures"] and result["profile"] is None
    assert {row["arm"] for row in result["bench"]["results"]} == {"plain", "mlx_lm"}


def test_a_step_that_fails_is_part_of_the_result(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = first_run({"model": str(home)}, lambda: {"seen": 1}, lambda text: None, home / "first.json")
    assert set(result["failures"]) == {"load"} and result["doctor"] == {"seen": 1}
    assert "macspec: load: " in capsys.readouterr().err
    assert json.loads((home / "first.json").read_text())["failures"] == result["failures"]
