"""A model that is not on this machine: asked about in the chat, downloaded, stopped, refused; from a hub of our own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_hub import FakeHub, serving
from macspec.worker.scripted import Reply
from macspec_tui import downloads
from macspec_tui.downloads import DownloadProblem, needed
from macspec_tui.screens.confirm import Confirm

FILES = {"config.json": b"{}", "model.safetensors": b"w" * 50_000}
ASK = needed


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MACSPEC_OFFLINE", "")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.add("some/model", FILES)
        yield server


@pytest.fixture
def asking(open_chat, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chat looks for what is missing, as it does outside of tests."""
    monkeypatch.setattr(downloads, "needed", ASK)


async def _ask(chat) -> Confirm:  # type: ignore[no-untyped-def]  # a chat of the fixture
    await chat.enter("/model some/model")
    await chat.until(lambda: isinstance(chat.app.screen, Confirm))
    return chat.app.screen


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("key", ["y", "enter"])
async def test_a_yes_downloads_and_loads(open_chat, tmp_path: Path, key: str) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        question = (await _ask(chat)).question
        assert "some/model  50 kB" in question and str(tmp_path) in question
        await chat.press(key)
        await chat.idle()
        assert chat.client.loads[-1].model == "some/model"
        assert [path.read_bytes() for path in tmp_path.rglob("snapshots/*/model.safetensors")] == [b"w" * 50_000]
        await chat.enter("/model some/model")
        await chat.idle()
        assert len(chat.client.loads) == 3


@pytest.mark.usefixtures("asking")
@pytest.mark.parametrize("key", ["n", "escape", "ctrl+c"])
async def test_a_no_changes_nothing(open_chat, hub: FakeHub, key: str) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await _ask(chat)
        await chat.press(key)
        await chat.idle()
        assert len(chat.client.loads) == 1 and "Nothing was downloaded" in chat.notes[-1]
        assert not [path for _, path, _ in hub.requests if "resolve" in path]


@pytest.mark.usefixtures("asking")
async def test_escape_stops_a_download(open_chat, hub: FakeHub) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(handler: object, path: str) -> bool:
        if path.endswith("model.safetensors"):
            began.set()
            go_on.wait(30)
        return False

    hub.rule = wait
    async with open_chat(Reply(text="ok")) as chat:
        await _ask(chat)
        await chat.press("enter")
        await chat.until(began.is_set)
        await chat.press("escape")
        go_on.set()
        await chat.idle()
        assert len(chat.client.loads) == 1 and "was stopped" in chat.notes[-1]
        await chat.say("still there?")
        assert chat.texts == ["still there?", "ok"]


@pytest.mark.usefixtures("asking")
async def test_an_unknown_name_is_a_sentence(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/model some/other")
        await chat.until(lambda: chat.notes)
        assert "some/other" in chat.notes[-1] and len(chat.client.loads) == 1


@pytest.mark.usefixtures("hub")
async def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert await needed(str(tmp_path), None) is None
    assert await needed("some/model", "lookup") is not None
    with pytest.raises(DownloadProblem, match="some/nothing"):
        await needed("some/model", "some/nothing")
    monkeypatch.setenv("MACSPEC_OFFLINE", "1")
    assert await needed("some/model", None) is None
