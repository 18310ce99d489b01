"""Find in the conversation: what to look for, and which of how many places is shown."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message as UiMessage
from textual.widgets import Input, Static


class FindBar(Horizontal):
    """Enter or Down goes to the next place, Shift+Enter or Up to the one before, Escape closes."""

    BINDINGS = [
        Binding("enter,down", "step(1)", "next", priority=True),
        Binding("shift+enter,up", "step(-1)", "previous", priority=True),
        Binding("escape", "close", "close", priority=True),
    ]

    class Step(UiMessage):
        """Show the next (1) or previous (-1) place of ``text``."""

        def __init__(self, text: str, step: int) -> None:
            super().__init__()
            self.text = text
            self.step = step

    class Closed(UiMessage):
        """The person is done."""

    def __init__(self) -> None:
        super().__init__(id="find")

    def compose(self) -> ComposeResult:
        yield Static("Find", classes="find-label")
        yield Input(id="find-text", compact=True, select_on_focus=True)
        yield Static("", id="find-count", markup=False)

    def open(self, text: str = "") -> None:
        """Show the bar and give it the focus."""
        self.display = True
        entry = self.query_one(Input)
        if text:
            entry.value = text
        entry.focus()

    def count(self, at: int, total: int) -> None:
        """Say which place is shown, from 1; 0 of 0 for none."""
        self.query_one("#find-count", Static).update(Content(f"{at} of {total}" if total else "not found"))

    def action_step(self, step: int) -> None:
        text = self.query_one(Input).value
        if text:
            self.post_message(self.Step(text, step))

    def action_close(self) -> None:
        self.display = False
        self.post_message(self.Closed())
