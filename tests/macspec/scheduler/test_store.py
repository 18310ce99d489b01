import multiprocessing
import stat
from pathlib import Path

import pytest

from macspec.scheduler.interface import RoundOutcome, SlotConfidence
from macspec.scheduler.store import load_survival, save_survival, write_atomically
from macspec.scheduler.survival import SurvivalModel


def learn(model: SurvivalModel, rounds: int) -> None:
    confidence = (SlotConfidence(0.9, 1.0, 1.0),)
    for _ in range(rounds):
        model.observe(RoundOutcome(1, 1, 2, 1, 0, 1.0, 1.0, 0.0, 0.0, confidence))


def work(path: Path, saves: int) -> None:
    model = SurvivalModel()
    load_survival(path, model)
    for _ in range(saves):
        learn(model, 5)
        save_survival(path, model)


def trials(path: Path) -> float:
    model = SurvivalModel()
    assert load_survival(path, model) == ""
    return sum(seen for _, seen in model.to_json()["cells"].values())


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    work(path, 2)
    assert trials(path) == pytest.approx(10.0, rel=0.05)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_saving_twice_counts_once(tmp_path: Path) -> None:
    model = SurvivalModel()
    learn(model, 8)
    save_survival(tmp_path / "table.json", model)
    save_survival(tmp_path / "table.json", model)
    assert trials(tmp_path / "table.json") == pytest.approx(8.0)


def test_two_processes_keep_what_both_learned(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(path, 8)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert trials(path) == pytest.approx(80.0, rel=0.02)
    assert [item.name for item in tmp_path.iterdir() if item.name.startswith(".")] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "\x00"])
def test_damaged_files_start_anew_with_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    assert "anew" in load_survival(path, SurvivalModel())
    model = SurvivalModel()
    learn(model, 3)
    save_survival(path, model)
    assert trials(path) == 3


def test_a_missing_file_is_no_fault(tmp_path: Path) -> None:
    assert "no survival table yet" in load_survival(tmp_path / "none.json", SurvivalModel())


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.json"
    write_atomically(path, "old")

    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["table.json"]
