"""The command line: answers, and sentences instead of tracebacks."""

from __future__ import annotations

import io
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from macspec import cli
from macspec_models.target import Target
from tiny_drafters import write_dflash
from tiny_engine import write_target


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Folders of a tiny target and of a random drafter for it."""
    folder = tmp_path_factory.mktemp("pair")
    target = write_target(folder / "target")
    write_dflash(folder / "drafter", json.loads((target / "config.json").read_text()))
    return target, folder / "drafter"


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(words)
    out = capsys.readouterr()
    return code, out.out, out.err


def generate(capsys, pair, *words: str) -> tuple[int, str, str]:
    return run(capsys, "generate", "--model", str(pair[0]), "--drafter", str(pair[1]), *words)


def test_json_answer(capsys, pair):
    code, out, err = generate(capsys, pair, "hello", "--json", "--max-tokens", "12", "--depth", "3", "--ignore-eos")
    assert (code, err) == (0, "")
    values = json.loads(out)
    assert len(values["tokens"]) == 12
    assert values["finish_reason"] == "length"
    stats = values["stats"]
    assert stats["generation_tokens"] == 12
    assert stats["verified"] <= stats["drafted"]
    for name in ("prompt_tokens", "prompt_tps", "generation_tps", "rounds", "accepted", "acceptance_length"):
        assert name in stats


def test_depth_changes_only_the_speed(capsys, pair):
    texts = set()
    for depth in ("0", "1", "full"):
        code, out, _ = generate(capsys, pair, "hello", "--json", "--max-tokens", "20", "--depth", depth)
        assert code == 0
        texts.add(json.loads(out)["text"])
    assert len(texts) == 1


def test_prompt_from_standard_input(capsys, pair, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    code, out, _ = generate(capsys, pair, "-", "--max-tokens", "5", "--depth", "2")
    assert code == 0
    assert out


def refused(capsys, pair, *words: str) -> str:
    code, out, err = generate(capsys, pair, *words)
    assert code in (1, 2), (code, out, err)
    assert "Traceback" not in err
    assert out == ""
    assert len(err) > 20
    return err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((" ",), "The prompt is empty"),
        (("hi", "--max-tokens", "-3"), "max"),
        (("hi", "--temperature", "-1"), "temperature"),
        (("hi", "--temperature", "nan"), "temperature"),
        (("hi", "--top-p", "0"), "top"),
        (("hi", "--depth", "many"), "depth"),
        (("hi", "--depth", "9999"), "depth is 9999, but this drafter drafts"),
        (("hi", "--policy", "fixed:9999"), "depth is 9999, but this drafter drafts"),
        (("hi", "--policy", "luck"), "policy"),
        (("hi", "--logit-bias", "99999=1"), "99999"),
        (("hi", "--stop-token-ids", "99999"), "99999"),
        (("x" * 5000, "--depth", "0"), "context"),
    ],
)
def test_wrong_values_are_sentences(capsys, pair, words, sentence):
    assert sentence.lower() in refused(capsys, pair, *words).lower()


def test_an_unknown_model_is_a_sentence(capsys):
    code, out, err = run(capsys, "generate", "hi", "--model", "no/such-model", "--depth", "0")
    assert (code, out) == (2, "")
    assert "no/such-model" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--model", "--drafter"])
@pytest.mark.parametrize("path", ["/nonexistent", "./none", "~/no/such/one"])
def test_a_path_that_is_not_there_is_called_a_folder(capsys, pair, option, path):
    code, out, err = run(capsys, "generate", "hi", "--model", str(pair[0]), option, path, "--depth", "0")
    assert (code, out) == (2, "")
    assert err == f"macspec: There is no folder '{path}'; check the path, or choose from: macspec models list\n"


def test_damaged_and_foreign_folders(capsys, pair, tmp_path):
    target, drafter = pair

    def broken(name, change):
        folder = tmp_path / name
        shutil.copytree(target, folder)
        change(folder)
        code, out, err = run(capsys, "generate", "hi", "--model", str(folder), "--drafter", "none", "--depth", "0")
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        return err

    assert "config.json" in broken("no-config", lambda f: (f / "config.json").unlink())
    weights = "model.safetensors"
    assert weights in broken("cut", lambda f: (f / weights).write_bytes((f / weights).read_bytes()[:-100]))

    def own_code(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))

    assert "model_file" in broken("code", own_code)

    def auto_map(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "evil.Model"}}))

    assert "auto_map" in broken("auto", auto_map)

    other = write_target(tmp_path / "other", hidden_size=64, head_dim=16)
    code, _, err = run(capsys, "generate", "hi", "--model", str(other), "--drafter", str(drafter), "--depth", "1")
    assert code == 2
    assert "made for" in err or "another" in err


def test_version_and_help(capsys):
    assert run(capsys, "--version")[1].startswith("macspec 0.")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in cli.COMMANDS:
        assert command in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "COMMAND is missing; see: macspec --help"),
        (["frob"], "COMMAND is 'frob'; choose from chat, generate, "),
        (["generate"], "prompt is missing; see: macspec generate --help"),
        (["bench", "--frob"], "There is no option or argument --frob here; see: macspec bench --help"),
        (["bench", "again"], "ACTION is 'again'; choose from compare, plot, show; see: macspec bench --help"),
        (["bench", "--tokens", "many"], "--tokens is 'many'; use a whole number; see: macspec bench --help"),
        (["bench", "--temperature", "hot"], "--temperature is 'hot'; use a number; see"),
        (["bench", "--dtype", "int3"], "--dtype is 'int3'; choose from float32, float16, bfloat16; see"),
        (["bench", "--json"], "--json needs a value after it; see"),
        (["bench", "--quick=1"], "--quick takes no value, and '1' was given; see"),
        (["bench", "--t", "3"], "--t could mean --tokens, "),
        (["bench", "compare", "a.json"], "B.json is missing; see: macspec bench compare --help"),
        (["generate", "hi", "--regex", "a", "--lark", "b"], "--lark and --regex exclude each other; give one of them"),
    ],
)
def test_wrong_words_get_one_sentence(capsys, words, sentence):
    code, out, err = run(capsys, *words)
    assert code == 2 and not out
    assert err.startswith(f"macspec: {sentence}") and err.count("\n") == 1


def test_interrupt_is_130(capsys, pair, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("macspec.engine.loop.Engine.load", interrupted)
    assert generate(capsys, pair, "hi", "--depth", "0")[0] == 130


def test_a_fault_of_ours_keeps_its_traceback(pair, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("macspec.engine.loop.Engine.load", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["generate", "--model", str(pair[0]), "hi", "--depth", "0"])


def test_the_tokenizer_says_nothing_of_long_prompts(pair, tmp_path):
    """Its own complaint about length would go to standard error, past everything of ours."""
    folder = shutil.copytree(pair[0], tmp_path / "short")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 16}))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        assert len(Target.load(folder).tokenizer.encode("x" * 500)) > 16
    finally:
        logger.removeHandler(handler)
    assert not said


def test_target_load_reads_the_folder(pair):
    target = Target.load(pair[0])
    assert target.vocab_size == 272
    assert target.eos == {271}


def test_prompt_that_is_not_utf8_is_a_sentence(capsys, monkeypatch):
    code, out, err = run(capsys, "generate", "hello \udcff")
    assert (code, out) == (2, "")
    assert err == "macspec: The prompt holds bytes that are not UTF-8; convert it first.\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello \xff"), encoding="utf-8"))
    code, out, err = run(capsys, "generate", "-")
    assert (code, out, err) == (2, "", "macspec: Standard input is not UTF-8; convert it first.\n")


def test_logprobs_need_json(capsys):
    code, out, err = run(capsys, "generate", "hello", "--logprobs", "2")
    assert (code, out, err) == (2, "", "macspec: --logprobs has nowhere to go in plain text; add --json.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_output_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "macspec", "models", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("macspec: There is no space left") and done.stderr.count("\n") == 1
