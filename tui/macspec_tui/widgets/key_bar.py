"""The keys that work now, in one line; whole entries only."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.content import Content
from textual.message import Message as UiMessage
from textual.widgets import Static


class KeyBar(Static):
    """Keys with what they do, the most useful first. A click on one does the same."""

    class Clicked(UiMessage):
        """The person clicked on a key."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self) -> None:
        super().__init__("", id="keys")
        self._entries: Sequence[tuple[str, str, str]] = ()
        self._spans: list[tuple[int, int, str]] = []

    def show(self, entries: Sequence[tuple[str, str, str]]) -> None:
        """Show entries of key, meaning and the action a click runs (empty for none)."""
        if entries != self._entries:
            self._entries = entries
            self._fit()

    def on_resize(self) -> None:
        self._fit()

    def on_click(self, event: events.Click) -> None:
        for start, end, action in self._spans:
            if start <= event.x - self.gutter.left < end and action:
                self.post_message(self.Clicked(action))

    def _fit(self) -> None:
        width, at = max(self.content_size.width, 1), 0
        parts: list[tuple[str, str]] = []
        self._spans = []
        for key, meaning, action in self._entries:
            size = len(key) + 1 + len(meaning)
            gap = 2 if parts else 0
            if at + gap + size > width:
                continue
            if gap:
                parts.append(("  ", ""))
            self._spans.append((at + gap, at + gap + size, action))
            parts += [(key, "bold"), (f" {meaning}", "")]
            at += gap + size
        self.update(Content.assemble(*parts), layout=False)
