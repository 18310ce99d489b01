from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import FakeHub, serving
from macspec import download
from macspec.cli import main
from macspec.cli_options import add_engine_options
from macspec.download import Line, ensure
from macspec.errors import RequestError
from macspec.machine import Machine
from macspec_models import hub as hubs
from macspec_models import registry
from macspec_models.errors import DownloadError, ModelMissingError

TARGET, DRAFTER = "someone/target", "someone/drafter"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 5000, "tokenizer.json": b"{}"}


class Terminal(io.StringIO):
    """Somebody who types, or reads."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one known pair, ``pair``, which this machine has not."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    # Set and not deleted, so that what `--offline` writes is taken back.
    monkeypatch.setenv("MACSPEC_OFFLINE", "")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source = registry.Source(TARGET, 1.5, "MIT")
    drafter = registry.Source(DRAFTER, 0.5, "MIT", kind="dflash", block=8)
    pair = registry.Pair("pair", "A pair", source, drafter, 8, False, "untested", suggested=True)
    known = {registry.EMBEDDED: registry.pairs()[registry.EMBEDDED], "pair": pair}
    monkeypatch.setattr(registry, "pairs", lambda: known)
    with serving() as server:
        server.add(TARGET, FILES)
        server.add(DRAFTER, {**FILES, "model.safetensors": b"d" * 300})
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    return parser.parse_args(words)


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> Terminal:
    """A person at a terminal who types ``text``; returns what is shown to them."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def here(name: str, part: str = "target") -> bool:
    return hubs.local_folder(name, part=part) is not None


def test_a_missing_pair_is_named_with_its_size_asked_about_and_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = typed(monkeypatch, "y\n")
    ensure(options("--model", "pair"))
    assert here("pair") and here("pair", "drafter")
    text = shown.getvalue()
    assert re.search(rf"{TARGET}@[0-9a-f]{{12}}: 0.0 MB, 0.0 MB to download", text) and DRAFTER in text
    assert text.count("[y/N]") == 1
    hub.requests.clear()
    ensure(options("--model", "pair"))
    assert hub.requests == [] and shown.getvalue() == text


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "maybe\n"])
def test_anything_but_yes_downloads_nothing(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    typed(monkeypatch, answer)
    with pytest.raises(DownloadError, match="macspec models pull pair"):
        ensure(options("--model", "pair"))
    assert not here("pair")


def test_yes_asks_nobody(hub: FakeHub) -> None:
    ensure(options("--model", TARGET, "--drafter", DRAFTER + "+lookup", "--yes"))
    assert here(TARGET) and here(DRAFTER)


def test_nobody_to_ask_is_one_sentence_with_the_size_and_the_command(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError) as caught:
        ensure(options("--model", "pair"))
    assert caught.value.message == (
        "pair is not on this machine yet (0.0 MB to download). Fetch it with: macspec models pull pair --yes"
    )
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RequestError, match=r"\(2.00 GB to download\)"):
        ensure(options("--model", "pair"))


def test_a_known_drafter_may_stay_away(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs.pull(TARGET)
    ensure(options("--model", "pair"))
    assert not here("pair", "drafter")
    typed(monkeypatch, "n\n")
    ensure(options("--model", "pair"))
    ensure(options("--model", "pair", "--drafter", "none"))
    assert not here("pair", "drafter")
    typed(monkeypatch, "y\n")
    ensure(options("--model", "pair", "--drafter", "+lookup"))
    assert here("pair", "drafter")


def test_a_drafter_asked_for_by_name_must_come(hub: FakeHub) -> None:
    with pytest.raises(RequestError, match=f"pull {DRAFTER}"):
        ensure(options("--drafter", DRAFTER))


def test_offline_asks_and_fetches_nothing(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "y\n")
    ensure(options("--model", "pair", "--offline"))
    assert hub.requests == [] and not here("pair")
    assert os.environ["MACSPEC_OFFLINE"] == "1"


def test_both_halves_must_fit_on_the_disk_together(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "free_bytes", lambda folder: hubs.MARGIN_BYTES + 5100)
    with pytest.raises(DownloadError, match=f"{TARGET} and {DRAFTER} needs"):
        ensure(options("--model", "pair", "--yes"))


def test_unknown_names_ask_nobody(hub: FakeHub) -> None:
    with pytest.raises(ModelMissingError, match="There is no model"):
        ensure(options("--model", "pear"))
    with pytest.raises(ModelMissingError, match="The hub has no"):
        ensure(options("--model", "someone/absent"))


def test_a_mac_is_offered_the_best_pair(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("macspec.machine.describe", lambda: Machine("Darwin", memory_bytes=16 << 30))
    ensure(options())  # nobody to ask: the embedded model runs
    assert hub.requests == []
    shown = typed(monkeypatch, "n\n")
    ensure(options())
    assert "This Mac can run A pair (pair)" in shown.getvalue() and not here("pair")
    typed(monkeypatch, "y\n")
    ensure(options())
    assert here("pair") and here("pair", "drafter")


@pytest.mark.parametrize("words", [["generate", "hello"], ["chat", "hello"], ["serve", "--port", "0"], ["profile"]])
def test_every_command_that_loads_a_model_says_how_to_get_it(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([*words, "--model", "pair"]) == 2
    said = capsys.readouterr().err
    assert "macspec models pull pair --yes" in said and "Traceback" not in said


def test_progress_shows_speed_and_time_left() -> None:
    line = Line("repo")
    assert line.text("downloading", 400, 1000, 10.0) == "repo: downloading  40 %"
    # What an earlier attempt left is no speed of this one.
    assert line.text("downloading", 600, 1000, 12.0) == "repo: downloading  60 %, 0.0 MB/s, 4 s left"
    slow = Line("x")
    slow.text("downloading", 0, 10**9, 0.0)
    assert slow.text("downloading", 10**8, 10**9, 100.0) == "x: downloading  10 %, 1.0 MB/s, 15 min left"


def test_asking_where_nobody_is_names_the_option() -> None:
    with pytest.raises(RequestError, match="add --yes"):
        download.confirm("Remove it?")
