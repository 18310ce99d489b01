"""The chat screen: what `ChatCore` does, on keys, and what the key line says about them."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from macspec_tui.screens.chat_core import ChatCore
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.find_bar import FindBar
from macspec_tui.widgets.user_message import UserMessage

#: A second Ctrl+C within this many seconds leaves.
AGAIN = 2.0


class ChatScreen(ChatCore):
    """The chat with its keys."""

    AUTO_FOCUS = "Prompt"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "stop", tooltip="Stop the answer, close what is open, return to the prompt"),
        Binding("ctrl+c", "interrupt", "copy, stop, leave", priority=True),
        Binding("ctrl+t", "thinking", "thinking", tooltip="Fold or unfold the last thinking"),
        Binding("ctrl+o", "runs", "drafted", tooltip="Colour the tokens that the drafter guessed"),
        Binding("ctrl+p,f2", "panel", "panel", tooltip="Show or hide the speculation panel"),
        Binding("ctrl+r", "search_history", "history", tooltip="Search in what you typed"),
        Binding("ctrl+f", "find", "find", tooltip="Find in the conversation"),
        Binding("ctrl+n", "new", "new", tooltip="Start a new conversation"),
        Binding("ctrl+l", "redraw", "redraw", tooltip="Draw the screen again"),
        Binding("f1", "help", "help", tooltip="Keys and commands"),
        Binding("f5", "restart", "engine", tooltip="Start the engine again"),
        Binding("pageup", "page(-1)", "scroll", priority=True),
        Binding("pagedown", "page(1)", "scroll", priority=True),
        Binding("ctrl+home", "top", "top", priority=True),
        Binding("ctrl+end", "end", "end", priority=True),
    ]

    _interrupted = -AGAIN

    async def action_escape(self) -> None:
        """Close what is open, else leave a message for the prompt, else stop the answer, else leave an edit."""
        if self.prompt.completing:
            self.close_completions()
        elif self.turn is not None and self.focused is self.prompt:
            await self.stop_answer()
        elif self.focused is not self.prompt:
            self.prompt.focus()
        elif self.download is not None:
            self.download.stop()
        elif self.editing is not None:
            self.set_editing(None)
            self.prompt.clear_all()

    async def action_interrupt(self) -> None:
        """Copy a selection; else stop the answer; pressed again soon, leave."""
        selected = self.get_selected_text() or (self.prompt.selected_text if self.focused is self.prompt else "")
        if selected:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
            return
        now = time.monotonic()
        if now - self._interrupted < AGAIN:
            await self.app.action_quit()
            return
        self._interrupted = now
        if self.turn is not None:
            await self.stop_answer()
        else:
            self.app.notify("Press Ctrl+C again to leave.", timeout=AGAIN)

    def action_thinking(self) -> None:
        """Fold or unfold the newest thinking."""
        for view in reversed(list(self.conversation.query(AnswerView))):
            if view.toggle_thinking():
                return
        self.app.notify("No answer here has thinking.")

    async def action_runs(self) -> None:
        """Colour the tokens by origin, or go back to Markdown."""
        await self.commands.run("/runs")

    def action_panel(self) -> None:
        """Show or hide the speculation panel."""
        self.toggle_panel()

    async def action_search_history(self) -> None:
        """Pick one of the earlier prompts."""
        from macspec_tui.screens.history_search import HistorySearch

        def put(text: str | None) -> None:
            if text is not None:
                self.prompt.put(text)

        self.app.push_screen(HistorySearch(self.app.history, self.prompt.text.split("\n")[0]), put)

    def action_find(self) -> None:
        """Open the find bar."""
        self.query_one(FindBar).open()

    async def action_new(self) -> None:
        """Start a new conversation."""
        await self.commands.run("/new")

    def action_redraw(self) -> None:
        """Draw everything again."""
        self.refresh(repaint=True, layout=True)

    async def action_help(self) -> None:
        """Show keys and commands."""
        await self.commands.run("/help")

    async def action_restart(self) -> None:
        """Start the engine process again."""
        await self.commands.run("/restart")

    def action_page(self, step: int) -> None:
        """Scroll by a page."""
        view = self.conversation
        if step > 0 and view.scroll_y >= view.max_scroll_y:
            view.follow()
            return
        view.release_anchor()
        view.scroll_relative(y=step * max(view.size.height - 2, 1), animate=False)

    def action_top(self) -> None:
        """Go to the first mounted message, which mounts earlier ones."""
        view = self.conversation
        view.release_anchor()
        if view.scroll_y <= 0:
            view.call_later(view.show_earlier)
        view.scroll_home(animate=False)

    def action_end(self) -> None:
        """Go to the newest text and follow it."""
        self.conversation.follow()

    def key_entries(self) -> list[tuple[str, str, str]]:
        focused = self.focused
        if isinstance(focused, UserMessage):
            return [("Esc", "prompt", "screen.escape"), ("c", "copy", ""), ("e", "edit", ""), ("←→", "versions", "")]
        if isinstance(focused, AnswerView):
            return [
                ("Esc", "prompt", "screen.escape"),
                ("c", "copy", ""),
                ("r", "again", ""),
                ("t", "thinking", ""),
                ("←→", "versions", ""),
            ]
        if focused is not None and not isinstance(focused, TextArea):
            return [("Enter", "next", ""), ("↑", "previous", ""), ("Esc", "close", "")]
        first = ("Esc", "stop", "screen.escape") if self.turn is not None else ("Enter", "send", "")
        return [
            first,
            ("F1", "help", "screen.help"),
            ("^J", "new line", ""),
            ("^P", "panel", "screen.panel"),
            ("^R", "history", "screen.search_history"),
            ("^F", "find", "screen.find"),
            ("^T", "thinking", "screen.thinking"),
            ("^O", "drafted", "screen.runs"),
            ("^N", "new", "screen.new"),
            ("^D", "leave", "app.quit"),
        ]
