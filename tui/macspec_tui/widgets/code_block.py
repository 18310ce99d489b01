"""A block of code: its language, a label that copies it, and the code, which may still be growing."""

from __future__ import annotations

from pygments.token import Token  # type: ignore[import-untyped]  # ships no type information
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.highlight import HighlightTheme, highlight
from textual.message import Message
from textual.widgets import Static
from textual.widgets.markdown import MarkdownFence

from macspec_tui.clean import for_display
from macspec_tui.widgets.sizes import size_without_layout

#: Lines per widget while the code grows: only the last one is laid out again.
CHUNK = 40


class AnsiHighlight(HighlightTheme):
    """Syntax colours out of the terminal's own sixteen."""

    STYLES = {
        Token.Comment: "italic",
        Token.Keyword: "bold ansi_magenta",
        Token.Keyword.Constant: "ansi_cyan",
        Token.Literal.Number: "ansi_cyan",
        Token.Literal.String: "ansi_green",
        Token.Name.Builtin: "ansi_cyan",
        Token.Name.Class: "bold",
        Token.Name.Decorator: "ansi_blue",
        Token.Name.Function: "bold",
        Token.Name.Tag: "ansi_blue",
        Token.Operator.Word: "bold ansi_magenta",
        Token.Number: "ansi_cyan",
        Token.String: "ansi_green",
    }


class RichHighlight(HighlightTheme):
    """Syntax colours of the theme, without the underlines that make code hard to read."""

    STYLES = {
        **HighlightTheme.STYLES,
        Token.Error: "",
        Token.Keyword.Namespace: "$text-accent",
        Token.Name: "",
        Token.Name.Function: "$text-primary",
        Token.Name.Function.Magic: "$text-primary",
        Token.Name.Constant: "$text-warning",
        Token.Operator: "",
        Token.Operator.Word: "$text-accent",
    }


def highlighted(code: str, language: str, *, ansi: bool) -> Content:
    """``code`` with the colours of its language; an unknown one stays plain."""
    # A tab size would expand tabs for the colouring only, and shift every colour behind one.
    theme = AnsiHighlight if ansi else RichHighlight
    return highlight(code, language=language or "text", theme=theme, tab_size=0)


class NestedFence(MarkdownFence):
    """A code block inside a list or a quotation, in the same colours as the others."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        return highlighted(code, language, ansi=ansi)


class CopyLabel(Static):
    """The word that copies when it is clicked."""

    class Pressed(Message):
        """It was clicked."""

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Pressed())


class CodeText(Static):
    """Some lines of code."""

    virtual_size = size_without_layout()

    def __init__(self, code: Content | str = "") -> None:
        super().__init__(code, markup=False, classes="code-text")


class CodeBlock(Vertical):
    """Code of one language. ``append`` while it streams, ``finish`` to colour it."""

    virtual_size = size_without_layout()

    class Copy(Message):
        """The person wants this code in the clipboard."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def __init__(self, language: str = "", code: str = "") -> None:
        super().__init__()
        self.language = language
        self.code = code
        self._chunks: list[CodeText] = []
        self._shown: list[str] = []
        self._finished = bool(code)

    def compose(self) -> ComposeResult:
        with Horizontal(classes="code-head"):
            yield Static(self.language or "text", markup=False, classes="code-language")
            yield CopyLabel("copy", markup=False, classes="code-copy")
        if self._finished:
            content = highlighted(for_display(self.code), self.language, ansi=self.app.native_ansi_color)
            yield CodeText(content)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._finished and self.is_mounted:
            self._colour()

    async def append(self, text: str) -> None:
        """Add code as it comes."""
        self.code += text
        for number, line in enumerate(text.splitlines(keepends=True)):
            if not self._shown or (number and self._shown[-1].count("\n") >= CHUNK):
                self._shown.append("")
                chunk = CodeText()
                self._chunks.append(chunk)
                await self.mount(chunk)
            self._shown[-1] += line
            if self._shown[-1].count("\n") >= CHUNK:
                self._show_last()
        if self._shown:
            self._show_last()

    def finish(self) -> None:
        """The code is complete: colour it. Doing so twice is harmless."""
        if not self._finished:
            self._finished = True
            self.code = self.code.removesuffix("\n")
            self._colour()

    @on(CopyLabel.Pressed)
    def _copy(self, event: CopyLabel.Pressed) -> None:
        event.stop()
        self.post_message(self.Copy(self.code))

    def _show_last(self) -> None:
        self._chunks[-1].update(Content(for_display(self._shown[-1].removesuffix("\n"))))

    def _colour(self) -> None:
        lines = highlighted(for_display(self.code), self.language, ansi=self.app.native_ansi_color).split("\n")
        widgets = list(self.query(CodeText))
        size = CHUNK if self._chunks else max(len(lines), 1)
        for number, widget in enumerate(widgets):
            widget.update(Content("\n").join(lines[number * size : (number + 1) * size]))
