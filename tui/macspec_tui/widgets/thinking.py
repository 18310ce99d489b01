"""What the model thought before its answer: open while it thinks, one line afterwards, opened again on demand."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from macspec_tui import figures
from macspec_tui.clean import for_display

#: Lines per widget while it grows: only the last one is laid out again.
_CHUNK = 2000


class ThinkingBlock(Vertical):
    """Thinking that folds. ``seconds`` and ``tokens`` are shown once it has ended."""

    def __init__(self, text: str = "", seconds: float = 0.0, tokens: int = 0, *, open: bool = False) -> None:
        super().__init__(classes="-open" if open else "")
        self._text = text
        self._seconds = seconds
        self._tokens = tokens
        self._running = open
        self._last: Static | None = None
        self._last_text = ""

    def compose(self) -> ComposeResult:
        yield Static(self._title(), markup=False, classes="thinking-title")
        if self._text:
            yield Static(Content(for_display(self._text)), classes="thinking-text")

    @property
    def open(self) -> bool:
        """Whether the thoughts can be read."""
        return self.has_class("-open")

    async def append(self, text: str) -> None:
        """Add thinking as it comes."""
        self._text += text
        if self._last is None or len(self._last_text) > _CHUNK and "\n" in text:
            if self._last is not None:
                before, text = text.split("\n", 1)
                self._last.update(Content(for_display(self._last_text + before)))
            self._last_text = ""
            self._last = Static("", markup=False, classes="thinking-text")
            await self.mount(self._last)
        self._last_text += text
        self._last.update(Content(for_display(self._last_text.rstrip("\n"))))

    def finish(self, seconds: float, tokens: int) -> None:
        """It has thought enough: fold, unless that happened before."""
        if not self._running:
            return
        self._running = False
        self._seconds, self._tokens = seconds, tokens
        self.remove_class("-open")
        self._retitle()

    def toggle(self) -> None:
        """Fold or unfold."""
        self.toggle_class("-open")
        self._retitle()

    def on_click(self, event: events.Click) -> None:
        if event.widget is not None and event.widget.has_class("thinking-title"):
            event.stop()
            self.toggle()

    def _retitle(self) -> None:
        self.query_one(".thinking-title", Static).update(Content(self._title()))

    def _title(self) -> str:
        if self._running:
            return "▾ thinking"
        count = f" · {figures.tokens(self._tokens)} tokens" if self._tokens else ""
        spent = f" for {figures.seconds(self._seconds)}" if self._seconds else ""
        return f"{'▾' if self.open else '▸'} thought{spent}{count}"
