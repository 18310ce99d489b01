"""Where the person types: several lines, history, pastes as one edit, and every way of making a new line."""

from __future__ import annotations

import re

from textual import events
from textual.message import Message as UiMessage
from textual.widgets import TextArea

from macspec_tui.clean import pasted
from macspec_tui.history import PromptHistory

#: Longer pastes are shown as one label and sent in full.
FOLD_LINES = 20
#: Keys that make a new line: terminals with the kitty protocol tell Shift+Enter apart, the others send one of the rest.
#: The names with a carriage return are what Textual makes of xterm's "modify other keys" sequences.
NEWLINE_KEYS = frozenset({"shift+enter", "alt+enter", "ctrl+j", "shift+\r", "alt+\r", "alt+shift+\r"})

_LABEL = re.compile(r"\[pasted \d+ lines(?: #\d+)?\]")


class Prompt(TextArea):
    """The prompt. Enter sends; Shift+Enter, Alt+Enter, Ctrl+J or a backslash before Enter make a new line."""

    class Submitted(UiMessage):
        """The person sends ``text``, pastes included."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class CompletionKey(UiMessage):
        """A key for the list of completions: ``up``, ``down``, ``tab`` or ``enter``."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class LeaveUp(UiMessage):
        """The person moves to the messages above."""

    def __init__(self, history: PromptHistory) -> None:
        super().__init__(
            id="prompt",
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            compact=True,
            highlight_cursor_line=False,
            placeholder="Type a message, / for commands",
        )
        self.cursor_blink = False
        self._history = history
        self._at: int | None = None
        self._typed = ""
        self._pastes: dict[str, str] = {}
        #: Set while a list of completions is shown, which then gets the keys that move in it.
        self.completing = False

    @property
    def full_text(self) -> str:
        """The text with folded pastes put back."""
        return _LABEL.sub(lambda match: self._pastes.get(match[0], match[0]), self.text)

    def put(self, text: str) -> None:
        """Replace what is typed, with the cursor at its end."""
        self.load_text("")
        self._insert(text)
        self.move_cursor(self.document.end)
        self._at = None

    def clear_all(self) -> None:
        """Empty the prompt and forget its pastes."""
        self._pastes.clear()
        self._at = None
        self.load_text("")

    async def on_key(self, event: events.Key) -> None:
        """Sending, new lines, history and completion; everything else is `TextArea`'s."""
        if event.key == "enter":
            self._take(event)
            self._enter()
        elif event.key == "ctrl+d" and not self.text:
            self._take(event)
            await self.app.run_action("app.quit")
        elif event.key in ("home", "end") and not self.text:
            self._take(event)
            await self.run_action("screen.top" if event.key == "home" else "screen.end")
        elif event.key in NEWLINE_KEYS:
            self._take(event)
            self._newline()
        elif self.completing and event.key in ("up", "down", "tab"):
            self._take(event)
            self.post_message(self.CompletionKey(event.key))
        elif event.key in ("tab", "shift+tab"):
            self._take(event)
            self.post_message(self.LeaveUp())
        elif event.key == "up" and self.navigator.is_first_wrapped_line(self.cursor_location):
            self._take(event)
            self._browse(-1)
        elif event.key == "down" and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._take(event)
            self._browse(1)
        elif event.key == "backspace" and self._remove_label():
            self._take(event)

    async def on_paste(self, event: events.Paste) -> None:
        """Insert what was pasted as one edit that one undo takes back."""
        event.stop()
        event.prevent_default()
        self._insert(pasted(event.text))

    def _insert(self, text: str) -> None:
        lines = text.count("\n") + 1
        if lines > FOLD_LINES:
            label = f"[pasted {lines} lines]"
            if label in self._pastes and self._pastes[label] != text:
                label = f"[pasted {lines} lines #{len(self._pastes) + 1}]"
            self._pastes[label] = text
            text = label
        start, end = sorted((self.selection.start, self.selection.end))
        self.history.checkpoint()
        result = self.replace(text, start, end, maintain_selection_offset=False)
        self.history.checkpoint()
        self.move_cursor(result.end_location)

    def _enter(self) -> None:
        if self.completing:
            self.post_message(self.CompletionKey("enter"))
            return
        row, column = self.cursor_location
        if self.document[row][:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            self.move_cursor((row + 1, 0))
            return
        self.submit()

    def submit(self) -> None:
        """Send what is typed; an empty prompt sends nothing but is reported all the same."""
        self.post_message(self.Submitted(self.full_text))

    def _newline(self) -> None:
        start, end = sorted((self.selection.start, self.selection.end))
        result = self.replace("\n", start, end, maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    def _browse(self, step: int) -> None:
        entries = self._history.entries
        at = len(entries) if self._at is None else self._at
        new = at + step
        if not 0 <= new <= len(entries) or (step > 0 and self._at is None):
            return
        if at == len(entries):
            self._typed = self.full_text
        self.put(self._typed if new == len(entries) else entries[new])
        self._at = None if new == len(entries) else new

    def _remove_label(self) -> bool:
        if self.selection.start != self.selection.end:
            return False
        row, column = self.cursor_location
        for match in _LABEL.finditer(self.document[row]):
            if match.end() == column and match[0] in self._pastes:
                self.replace("", (row, match.start()), (row, column))
                return True
        return False

    @staticmethod
    def _take(event: events.Key) -> None:
        event.stop()
        event.prevent_default()
