"""The full-screen chat application: it owns the engine client, the session store and the settings."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import ClassVar

from rich.console import RenderableType
from textual.app import App
from textual.binding import Binding, BindingType

from macspec.errors import MacspecError, RequestError
from macspec.worker.client import EngineClient
from macspec_tui import clipboard, figures, garbage, themes
from macspec_tui.clean import for_display
from macspec_tui.history import PromptHistory
from macspec_tui.screens.chat import ChatScreen
from macspec_tui.settings import ChatSettings
from macspec_tui.store import Session, SessionStore
from macspec_tui.terminal_colour import Background, ask
from macspec_tui.terminal_keys import declare_keys

#: Seconds a running answer gets to stop when the person leaves.
LEAVE_SECONDS = 2.0


class ChatApp(App[None]):
    """``macspec chat``."""

    CSS_PATH = "chat.tcss"
    TITLE = "macspec"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "leave", priority=True)]

    def __init__(
        self,
        client: EngineClient,
        store: SessionStore,
        session: Session,
        settings: ChatSettings,
        *,
        history: PromptHistory | None = None,
        theme: str | None = None,
        background: Background | None = None,
        first: str = "",
    ) -> None:
        declare_keys()
        # Told so at once, Textual drops colours; told later, it turns the terminal's own colours into black.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.client = client
        self.store = store
        self.settings = settings
        self.history = history if history is not None else PromptHistory()
        self.background = background or Background()
        self.chat = ChatScreen(session, first, self.background.typed)
        self.theme_name = "auto"
        self.animation_level = "none"
        for entry in (themes.DARK, themes.LIGHT):
            self.register_theme(entry)
        self.use_theme(theme or "auto")

    def on_mount(self) -> None:
        self.push_screen(self.chat)
        if not self.is_headless:
            self.call_after_refresh(garbage.prepare)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            # The window was closed or the machine goes down: keep what was said so far.
            loop.add_signal_handler(number, self._ended_from_outside)

    def use_theme(self, name: str) -> None:
        """Change the colours. Raises `RequestError` for a name that is none."""
        if name not in themes.NAMES:
            raise RequestError(f"There is no theme {name}; there are {', '.join(themes.NAMES)}.", param="theme")
        self.theme_name = name
        self.theme = themes.THEMES[themes.resolve(name, light=self.background.light)].name

    def copy_to_clipboard(self, text: str) -> None:
        """Copy by whatever works here and say how it went. Textual's own widgets copy through this too."""
        self._clipboard = text
        self.run_worker(self._copy(text), group="copy")

    async def _copy(self, text: str) -> None:
        sequences: list[str] = []
        result = await asyncio.to_thread(clipboard.copy, text, sequences.append)
        if self._driver is not None:
            for sequence in sequences:
                self._driver.write(sequence)
        self.notify(result.message, severity="information" if result.ok else "error", markup=False)

    async def action_quit(self) -> None:
        """Stop a running answer, keep what it said, and leave."""
        turn = self.chat.turn
        if turn is not None:
            try:
                await turn.stop()
            except MacspecError:
                pass
            for _ in range(int(LEAVE_SECONDS / 0.05)):
                if self.chat.turn is None:
                    break
                await asyncio.sleep(0.05)
        self.keep_unfinished()
        self.exit()

    def keep_unfinished(self) -> None:
        """End a running answer and save what it has said so far; harmless when none runs."""
        turn, self.chat.turn = self.chat.turn, None
        # Else it would save the same answer again when it ends, and show it in a window that is going.
        self.workers.cancel_group(self.chat, "answer")
        if turn is not None and not turn.draft.empty:
            turn.draft.stop()
            session = self.chat.session
            message = session.conversation.add(turn.draft.message())
            self.chat.keep(lambda: session.save(message))

    def exit(self, result: None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        """Leave. Nothing more can be shown from here on, so whatever is still being shown ends first."""
        self.workers.cancel_all()
        super().exit(result, return_code, message)

    def _ended_from_outside(self) -> None:
        self.keep_unfinished()
        self.exit(return_code=1)


def run_app(
    client: EngineClient,
    store: SessionStore,
    session: Session,
    settings: ChatSettings,
    *,
    theme: str | None = None,
    first: str = "",
) -> int:
    """Run the chat until the person leaves; the last answer and a line of numbers stay in the scrollback."""
    if not sys.stderr.isatty():
        # Textual draws through standard error; here somebody collects that, and standard output is the terminal.
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]  # declared final, but this is what Textual draws through
    background = ask() if themes.worth_asking(theme) else None
    app = ChatApp(client, store, session, settings, theme=theme, background=background, first=first)

    async def run() -> None:
        try:
            await app.run_async()
        finally:
            await client.close()

    asyncio.run(run())
    try:
        sys.stdout.write(farewell(app.chat.session))
        sys.stdout.flush()
    except (OSError, ValueError):
        # The terminal is gone.
        return 1
    app.chat.session.close()
    return app.return_code or 0


def farewell(session: Session) -> str:
    """What stays on the normal screen: the last answer, its numbers, and how to continue."""
    last = session.conversation.last("assistant")
    if last is None:
        return ""
    lines = [for_display(last.text), ""]
    if last.stats is not None:
        lines.append(f"({figures.summary(last.stats)})")
    if session.stored:
        lines.append(f"Continue with: macspec chat --resume {session.id}")
    return os.linesep.join(lines) + os.linesep
