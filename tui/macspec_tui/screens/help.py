"""Keys and commands, all of them."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from macspec_tui.commands import COMMANDS

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
            ("Ctrl+D", "leave, when nothing is typed"),
            ("Ctrl+T", "fold or unfold the last thinking"),
            ("Ctrl+O", "colour the tokens that the drafter guessed"),
            ("Ctrl+P, F2", "speculation panel"),
            ("F5", "start the engine again"),
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
                yield Static(help_text(), classes="help-text")
            yield Static("↑ ↓ scroll · Esc close", classes="dialog-help")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def help_text() -> Content:
    """All keys and commands; each meaning is on the line below its key, so that narrow windows cut nothing."""
    parts: list[tuple[str, str]] = []
    for title, keys in KEYS:
        parts.append((f"{title}\n", "bold underline"))
        for key, meaning in keys:
            parts += [(f"{key}\n", "bold"), (f"    {meaning}\n", "")]
        parts.append(("\n", ""))
    parts.append(("Commands\n", "bold underline"))
    for command in COMMANDS:
        parts += [(f"/{command.name} {command.usage}".rstrip() + "\n", "bold"), (f"    {command.help}\n", "")]
    parts.append(("\nA message that starts with // is sent with one slash.", ""))
    return Content.assemble(*parts)
