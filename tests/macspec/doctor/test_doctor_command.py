from __future__ import annotations

import argparse
import dataclasses
import json
import socket
from pathlib import Path

import pytest

from macspec import doctor
from macspec.doctor import command, facts
from macspec.doctor.facts import MlxFacts, Sources
from macspec.doctor.rules import examine
from macspec.engine.row_noise import RowNoise
from macspec.machine import Probe
from macspec.profiling.row_noise import FILE, RowNoiseStore, noise_identity
from macspec.scheduler.ladder import Ladder


class Quiet(Probe):
    """This machine without its load, which says nothing about doctor."""

    def load(self) -> float | None:
        return 0.0


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("doctor must not open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Sources(
        probe=Quiet(),
        cache=tmp_path / "cache/macspec",
        hub=tmp_path / "hub",
        look_at_mlx=lambda: (MlxFacts(metal=True, blas="/x/libopenblas.so", gflops=100.0), ""),
        which=lambda name: "/usr/bin/g++",
        now=lambda: 1e9 + 7200,
    )


def test_an_empty_home_is_fine(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(options(), sources) == 0
    shown = capsys.readouterr().out
    assert "not measured on this machine yet" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_broken_things_give_exit_code_one(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    broken = Sources(**{**vars(sources), "look_at_mlx": lambda: (None, "Abort trap: 6")})
    assert command.run(options(), broken) == 1
    shown = capsys.readouterr().out
    assert "✗ mlx: MLX cannot be imported: Abort trap: 6." in shown and "→ Reinstall it" in shown
    assert "1 broken" in shown


def test_json_has_facts_and_findings(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(options("--json"), sources) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["broken"] is False
    assert {"area", "level", "message", "remedy"} == set(values["findings"][0])
    assert values["mlx"]["gflops"] == 100.0 and values["machine"]["system"]


def test_profiles_are_read_and_bad_ones_explained(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sources.cache / "profiles"
    folder.mkdir(parents=True)
    good = Ladder(contexts=(0, 1000), verify=((10, 11, 12), (11, 12, 13)), draft=(2, 2))
    values = {
        "schema": 1,
        "identity": {"target": "t", "drafter": "d", "dtype": "float16"},
        "measured_at": 1e9,
        "ladder": good.to_json(),
    }
    (folder / "a.json").write_text(json.dumps(values))
    (folder / "b.json").write_text("{broken")
    (folder / "c.json").write_text(json.dumps({**values, "ladder": {"schema": 1}}))
    (folder / "d.json").write_text("[]")
    (folder / "a.survival.json").write_text("{}")
    (folder / "kernels.json").write_text(json.dumps({"verdicts": {"case": {"outcome": "wins", "ratio": 1.4}}}))
    found = facts.read_profiles(folder, 1e9 + 7200)
    assert [bool(p.ladder) for p in found] == [True, False, False, False]
    assert found[0].age_s == 7200
    assert command.run(options("--kernels"), sources) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "t with d, float16: 10.0 ms a pass, measured 2 hours ago" in shown
    assert "b.json is not JSON" in shown and "it has no 'contexts'" in shown
    assert "1 kernel cases were tried: 1 wins" in shown and "1.40" in shown


@pytest.mark.parametrize(
    ("largest", "near_ties", "told"),
    [
        (0.0, 0, "t in float16: --exact is free"),
        (0.001, 0, "nearly free; a logit differs by up to 0.001"),
        (0.001, 400, "one token in 3 would have to be decided again"),
    ],
)
def test_doctor_says_what_exact_mode_costs(
    sources: Sources, capsys: pytest.CaptureFixture[str], largest: float, near_ties: int, told: str
) -> None:
    noise = RowNoise(largest, compared=80, max_rows=8, density=0.01, tokens=1000, near_ties=near_ties)
    key = noise_identity({"target": "t", "dtype": "float16"}, "mlx", None)
    RowNoiseStore(sources.cache / "profiles").save(key, noise)
    assert command.run(options(), sources) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert told in shown
    assert FILE not in shown


def test_a_wrong_drafter_is_named(sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, drafter = tmp_path / "t", tmp_path / "d"
    for folder, config in (
        (target, {"num_hidden_layers": 30, "hidden_size": 576, "vocab_size": 49152}),
        (drafter, {"num_target_layers": 36, "hidden_size": 2560, "dflash_config": {"target_layer_ids": [1]}}),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    assert command.run(options("--model", str(target), "--drafter", str(drafter)), sources) == 1
    assert "expects 36 layers and this one has 30" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["lookup", "+lookup", "smollm2-135m", "smollm2-135m+lookup", "none"])
def test_every_way_to_name_a_drafter_is_understood(
    sources: Sources, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(options("--drafter", name), sources) == 0
    shown = " ".join(capsys.readouterr().out.split())
    told = {"lookup": "✓ drafter: Drafts are looked up", "none": "All is well"}.get(name, "A drafter with blocks of 8")
    assert told in shown and "✗" not in shown


@pytest.mark.parametrize("fetched", [True, False])
def test_a_known_model_is_looked_at_with_its_own_drafter(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    folders = {"target": tmp_path / "t", "drafter": tmp_path / "d"}
    for folder in folders.values():
        folder.mkdir()
        (folder / "config.json").write_text('{"hidden_size": 4096}')
    here = {part: path for part, path in folders.items() if fetched or part == "target"}
    monkeypatch.setattr(facts, "local_folder", lambda name, part="target": here.get(part))
    own, named = facts.read_pair("qwen3-8b", None), facts.read_pair("qwen3-8b", "qwen3-8b+lookup")
    assert own.drafter_path == named.drafter_path == (str(folders["drafter"]) if fetched else None)
    assert bool(named.drafter_error) is not fetched and not own.drafter_error
    assert own.missing_drafter_of == ("" if fetched else "qwen3-8b")
    told = examine(dataclasses.replace(facts.collect(sources), pair=own))
    assert any("macspec models pull qwen3-8b" in finding.remedy for finding in told) is not fetched


@pytest.mark.parametrize("name", ["qwen3-8b", "someone/thing", "no such thing", "../x"])
def test_names_that_are_not_here(sources: Sources, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(options("--model", name), sources) == 1
    assert "not on this machine" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("output", "errors", "code", "said"),
    [
        ("", "Traceback\nImportError: no libmlx", 1, "ImportError: no libmlx"),
        ("", "", -6, "ended by signal 6"),
        ("", "", 3, "ended with code 3"),
        ("\n@@{}", "", 0, "not understood"),
        ("\n@@not json", "", 0, "not understood"),
        ("nothing", "", 0, "ended with code 0"),
    ],
)
def test_what_the_child_process_may_answer(output: str, errors: str, code: int, said: str) -> None:
    mlx, error = facts.parse_mlx(output, errors, code)
    assert mlx is None and said in error


def test_noise_before_the_answer_is_ignored() -> None:
    text = 'deprecated!\n@@{"blas": null, "metal": true, "gflops": 9, "right": true, "device": {"architecture": "g"}}'
    mlx, error = facts.parse_mlx(text, "warning", 0)
    assert error == "" and mlx == MlxFacts(metal=True, gflops=9.0, architecture="g")


def test_the_real_child_process_answers() -> None:
    mlx, error = facts.look_at_mlx()
    assert error == "" and mlx is not None and mlx.right and mlx.gflops > 0


def test_sizes_do_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert 1000 <= facts.size_of(tmp_path) < 2000
