"""Keys and commands, all of them."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from macspec_tui.commands import COMMANDS

#: Columns from which a meaning stands beside its key and not below it.
TWO_COLUMNS = 70

KEYS = (
    (
        "Typing",
        (
            ("Enter", "send; while an answer runs the message waits for its turn"),
            ("Shift+Enter, Alt+Enter, Ctrl+J", "new line; or end the line with \\ and press Enter"),
            ("↑ ↓", "earlier messages, at the first and last line"),
            ("Ctrl+R", "search in what you typed before"),
            ("Tab", "complete a command; otherwise go to the messages"),
            ("Ctrl+Z, Ctrl+Y", "undo and redo typing"),
        ),
    ),
    (
        "Answers",
        (
            ("Esc", "stop the answer and keep what was said"),
            ("Ctrl+C", "copy the selection, or stop; twice leaves"),
            ("Ctrl+D, Ctrl+Q", "leave; Ctrl+D when nothing is typed"),
            ("Ctrl+T", "fold or unfold the last thinking"),
            ("Ctrl+O", "colour the tokens that the drafter guessed"),
            ("Ctrl+P, F2", "speculation panel"),
            ("F5", "start the engine again"),
            ("F1", "this page"),
        ),
    ),
    (
        "Reading",
        (
            ("PageUp, PageDown, wheel", "scroll, also while an answer runs"),
            ("Ctrl+Home, Ctrl+End", "first message; newest text, and follow it"),
            ("Ctrl+F", "find in the conversation"),
            ("Ctrl+N", "new conversation"),
            ("Ctrl+L", "draw the screen again"),
        ),
    ),
    (
        "On a message (Tab, then ↑ ↓)",
        (
            ("C", "copy its source text"),
            ("E", "edit it as a new version (yours)"),
            ("R", "answer again (answers)"),
            ("T", "fold or unfold its thinking (answers)"),
            ("← →", "older and newer versions"),
        ),
    ),
)


class HelpScreen(ModalScreen[None]):
    """A page to scroll through; Escape, Q or F1 closes it."""

    BINDINGS = [Binding("escape,q,f1,enter", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Keys and commands", classes="dialog-title")
            with VerticalScroll():
                for title, rows in sections():
                    yield Static(title, classes="help-title")
                    for name, meaning in rows:
                        with Horizontal(classes="help-row"):
                            yield Static(name, markup=False, classes="help-name")
                            yield Static(meaning, markup=False, classes="help-meaning")
                yield Static("A message that starts with // is sent with one slash.", classes="help-title")
            yield Static("↑ ↓ scroll · Esc close", classes="dialog-help")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        self.set_class(self.size.width < TWO_COLUMNS, "-narrow")


def sections() -> list[tuple[str, list[tuple[str, str]]]]:
    """Titles with rows of a key or command and its meaning."""
    commands = [(f"/{command.name} {command.usage}".rstrip(), command.help) for command in COMMANDS]
    return [*((title, list(rows)) for title, rows in KEYS), ("Commands", commands)]
