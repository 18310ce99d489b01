"""What is going on right now, above the prompt: loading, reading the prompt, thinking, waiting messages."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from macspec_tui.clean import for_display


class Activity(Static):
    """One line with an optional bar; hidden when nothing is going on. It moves only when the work does."""

    def __init__(self) -> None:
        super().__init__("", id="activity")
        self.text = ""
        self._share: float | None = None

    def show(self, text: str, share: float | None = None) -> None:
        """Show what is going on and, if known, how much of it is done (0 to 1)."""
        if (text, share) == (self.text, self._share):
            return
        self.text, self._share = text, share
        self.display = bool(text)
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        text = for_display(self.text)
        room = self.content_size.width - len(text) - 2
        bar = ""
        if self._share is not None and room >= 8:
            bar = "  " + meter(self._share, min(room, 30))
        self.update(Content(text + bar))


def meter(share: float, width: int) -> str:
    """A bar of ``width`` cells, filled by ``share``; readable without colour."""
    filled = round(width * min(max(share, 0.0), 1.0))
    return "█" * filled + "░" * (width - filled)
