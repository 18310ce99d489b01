from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import FakeHub, serving
from macspec.cli import main
from macspec.models_command import Line
from macspec_models import hub as hubs

REPO = "someone/tiny"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 5000, "tokenizer.json": b"{}"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_HUB_OFFLINE", "MACSPEC_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with serving() as server:
        server.add(REPO, FILES)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_pull_show_path_and_rm(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", REPO, "--yes"]) == 0
    shown = capsys.readouterr().out
    folder = hubs.local_folder(REPO)
    assert folder is not None and str(folder) in shown and "0.00 GB to download" in shown
    assert main(["models", "path", REPO]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    assert main(["models", "show", REPO, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"repo": REPO, "path": str(folder)}
    assert main(["models", "list", "--json"]) == 0
    # Two files of the same content are one.
    assert json.loads(capsys.readouterr().out)["others"] == {REPO: 5002}
    assert main(["models", "rm", REPO, "--yes"]) == 0
    assert not folder.exists()
    assert main(["models", "rm", REPO, "--yes"]) == 1


def test_a_second_pull_downloads_nothing(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", REPO, "--yes"]) == 0
    hub.requests.clear()
    # Nothing is missing, so nobody has to be asked.
    assert main(["models", "pull", REPO]) == 0
    assert not any("/cdn/" in path and command == "GET" for command, path, _ in hub.requests)


def test_nobody_to_ask_downloads_nothing(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", REPO]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert hubs.local_folder(REPO) is None


def test_offline(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", REPO, "--offline"]) == 1
    assert "not on this machine" in capsys.readouterr().out
    assert hub.requests == []


def test_the_embedded_pair_needs_no_pull(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "smollm2-135m"]) == 0
    assert "ships with macspec" in capsys.readouterr().out
    assert main(["models", "rm", "smollm2-135m", "--yes"]) == 2
    assert main(["models", "path", "smollm2-135m", "--drafter"]) == 0
    assert capsys.readouterr().out.strip().endswith("drafter")


def test_list_and_show(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert any(line.startswith("smollm2-135m ") and line.endswith("yes") for line in lines)
    assert main(["models", "show", "qwen3-8b"]) == 0
    shown = capsys.readouterr().out
    assert "z-lab/Qwen3-8B-DFlash-b16" in shown and "published figure" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pull", "qwen3-8bb"], "Did you mean qwen3-8b"),
        (["pull", "../x/y"], "There is no model"),
        (["pull", "a/.."], "is not a repository id"),
        (["show", "nothing"], "There is no model"),
        (["path", "qwen3-8b"], "macspec models pull qwen3-8b"),
        (["pull", "someone/absent", "--yes"], "The hub has no someone/absent"),
        (["pull", "qwen3-8b", "--revision", "x"], "a known pair has its own"),
        (["pull", REPO, "--revision", "../x"], "is not a revision"),
    ],
)
def test_wrong_names_are_sentences(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["models", *words]) == 2
    caught = capsys.readouterr()
    assert sentence in caught.err and "Traceback" not in caught.err


def test_progress_shows_speed_and_time_left() -> None:
    line = Line("repo")
    assert line.text("downloading", 400, 1000, 10.0) == "repo: downloading  40 %"
    # What an earlier attempt left is no speed of this one.
    assert line.text("downloading", 600, 1000, 12.0) == "repo: downloading  60 %, 0.0 MB/s, 4 s left"
    slow = Line("x")
    slow.text("downloading", 0, 10**9, 0.0)
    assert slow.text("downloading", 10**8, 10**9, 100.0) == "x: downloading  10 %, 1.0 MB/s, 15 min left"
