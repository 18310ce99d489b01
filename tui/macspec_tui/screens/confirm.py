"""A question that needs a yes."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from macspec_tui.clean import for_display


class Confirm(ModalScreen[bool]):
    """Returns whether the person agreed; everything but a clear yes is a no."""

    BINDINGS = [
        Binding("y,enter", "answer(True)", "yes", priority=True),
        Binding("n,escape,ctrl+c", "answer(False)", "no", priority=True),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog question"):
            yield Static(Content(for_display(self.question)), classes="question-text")
            yield Static("Enter or Y yes · Esc or N no", classes="dialog-help")

    def action_answer(self, agreed: bool) -> None:
        self.dismiss(agreed)
