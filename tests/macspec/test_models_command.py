from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import FakeHub, serving
from macspec.cli import main
from macspec_models import hub as hubs
from macspec_models.checkpoints import load_drafter
from tiny_drafters import TINY_TARGET, TinyTarget, write_dflash

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
    shown = capsys.readouterr()
    folder = hubs.local_folder(REPO)
    assert folder is not None and str(folder) in shown.out and "0.0 MB to download" in shown.err
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


def test_a_copy_of_lm_studio_is_not_downloaded_again(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "home" / ".lmstudio" / "models" / REPO
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    assert main(["models", "pull", REPO]) == 0
    assert "from LM Studio" in capsys.readouterr().out and hub.requests == []


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


def test_quantising_writes_a_smaller_copy_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = TinyTarget()
    folder = tmp_path / "drafter"
    folder.mkdir()
    write_dflash(folder, TINY_TARGET)
    out = tmp_path / "small"
    words = ["models", "quantize-drafter", str(folder), "--bits", "8", "--group-size", "32", "--out", str(out)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "name its target with --model" in shown and f"--drafter {out}" in shown
    assert json.loads((out / "config.json").read_text())["quantization"] == {"group_size": 32, "bits": 8}
    assert load_drafter(out, target).nbytes < load_drafter(folder, target).nbytes
    assert main([*words, "--no-compare"]) == 2
    assert "name a new folder" in capsys.readouterr().err


def test_the_option_told_names_the_new_folder_even_where_a_known_model_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dflash(tmp_path / "drafter", TINY_TARGET)
    words = ["models", "quantize-drafter", "./drafter", "--bits", "8", "--group-size", "32", "--out", "qwen3-8b"]
    assert main([*words, "--no-compare"]) == 0
    told = capsys.readouterr().out.rsplit("--drafter ", 1)[1].strip()
    assert hubs.resolve(told, part="drafter").resolve() == tmp_path / "qwen3-8b"


@pytest.mark.slow
def test_quantising_the_embedded_drafter_compares_acceptance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    words = ["models", "quantize-drafter", "smollm2-135m", "--bits", "8", "--tokens", "16", "--out", str(out)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    rows = dict(re.findall(r"(before|after) +acceptance length ([0-9.]+) over", shown))
    # Eight bits change hardly a draft.
    assert abs(float(rows["after"]) - float(rows["before"])) < 0.15
    assert "acceptance length changes by" in shown
