"""What the program says in the conversation: results of commands, explanations, errors. The model never sees it."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from macspec_tui.clean import for_display


class Note(Static):
    """A note of one ``kind``: ``info``, ``warning`` or ``error``. Kinds differ by a word too, not only by colour."""

    def __init__(self, text: str, kind: str = "info") -> None:
        label = {"warning": "Note: ", "error": "Error: "}.get(kind, "")
        self.text = label + text
        super().__init__(Content(for_display(self.text)), classes=f"note -{kind}")
