"""A chat on a scripted engine, in a terminal that is not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from macspec.worker.scripted import Reply, ScriptedClient
from macspec_tui.app import ChatApp
from macspec_tui.history import PromptHistory
from macspec_tui.screens.chat import ChatScreen
from macspec_tui.settings import ChatSettings
from macspec_tui.store import Session, SessionStore
from macspec_tui.terminal_colour import Background
from macspec_tui.widgets.note import Note
from macspec_tui.widgets.prompt import Prompt


class Chat:
    """The running chat and what a person can do with it."""

    def __init__(self, app: ChatApp, pilot: Pilot[None], copied: list[str]) -> None:
        self.app = app
        self.pilot = pilot
        self.copied = copied

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat

    @property
    def client(self) -> ScriptedClient:
        assert isinstance(self.app.client, ScriptedClient)
        return self.app.client

    @property
    def prompt(self) -> Prompt:
        return self.screen.prompt

    @property
    def notes(self) -> list[str]:
        return [note.text for note in self.screen.query(Note)]

    @property
    def texts(self) -> list[str]:
        """The shown messages, oldest first."""
        return [message.text for message in self.screen.session.conversation.path()]

    async def until(self, done: Callable[[], object], what: str = "") -> None:
        """Let the chat run until something is so; fails when it never is."""
        # The pilot's own pause waits for every widget, also for one that streaming has just replaced.
        for _ in range(6000):
            if done():
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail(what or "it never happened")
        await self.settle()

    async def settle(self) -> None:
        """Let everything that is due be drawn."""
        await asyncio.sleep(0.02)
        await self.pilot.pause()

    async def idle(self) -> None:
        """Let the chat run until nothing is going on."""
        await self.until(
            lambda: self.screen.turn is None and not self.screen.engine_loading and not self.screen.waiting,
            "never idle",
        )

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def enter(self, text: str) -> None:
        """Type a text and press Enter."""
        self.prompt.put(text)
        await self.pilot.pause()
        self.screen.close_completions()
        await self.press("enter")

    async def say(self, text: str) -> None:
        """Send a text and wait for its answer."""
        await self.enter(text)
        await self.idle()


OpenChat = Callable[..., AbstractAsyncContextManager[Chat]]


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions")


@pytest.fixture
def open_chat(tmp_path: Path, store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> OpenChat:
    """Opens a chat; give a script, a client, a session or a size."""
    monkeypatch.delenv("NO_COLOR", raising=False)

    async def nothing(model: str, drafter: str | None) -> None:
        return None

    monkeypatch.setattr("macspec_tui.downloads.needed", nothing)
    monkeypatch.delenv("COLORFGBG", raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")

    @contextlib.asynccontextmanager
    async def make(
        script: object = None,
        *,
        client: ScriptedClient | None = None,
        session: Session | None = None,
        size: tuple[int, int] = (100, 30),
        theme: str | None = "dark",
        background: Background | None = None,
        first: str = "",
        ready: bool = True,
    ) -> AsyncIterator[Chat]:
        if client is None:
            client = ScriptedClient() if script is None else ScriptedClient(script)  # type: ignore[arg-type]  # any script
        app = ChatApp(
            client,
            store,
            session or store.new(),
            ChatSettings(),
            history=PromptHistory(tmp_path / "history.jsonl"),
            theme=theme,
            background=background,
            first=first,
        )
        copied: list[str] = []
        monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
        async with app.run_test(size=size) as pilot:
            chat = Chat(app, pilot, copied)
            if ready:
                await chat.idle()
            yield chat
            if app.chat.turn is not None:
                _open_gates(client._script)
                await app.action_quit()
        app.chat.session.close()

    return make


def _open_gates(script: object) -> None:
    replies = [script] if isinstance(script, Reply) else script if isinstance(script, list) else []
    for reply in replies:
        for gate in (reply.gate, reply.prefill_gate, *(reply.gates or {}).values()):
            if gate is not None:
                gate.set()
