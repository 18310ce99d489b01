"""Markdown of an answer, without what a model could misuse: raw HTML is shown as text, links open only on the web."""

from __future__ import annotations

from typing import Any

from markdown_it import MarkdownIt
from textual import on
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from macspec_tui.widgets.code_block import NestedFence
from macspec_tui.widgets.sizes import size_without_layout


def _parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False})


#: Textual names its class for paragraphs in this table only.
_MarkdownParagraph: Any = Markdown.BLOCKS["paragraph_open"]


class Paragraph(_MarkdownParagraph):  # type: ignore[misc]  # a base without a type
    """A paragraph, most of what streams."""

    virtual_size = size_without_layout()


class Prose(Markdown):
    """A run of Markdown between code blocks. Its text must already be safe to display."""

    virtual_size = size_without_layout()
    BLOCKS: dict[str, type[MarkdownBlock]] = {
        **Markdown.BLOCKS,
        "fence": NestedFence,
        "code_block": NestedFence,
        "paragraph_open": Paragraph,
    }

    def __init__(self, markdown: str = "") -> None:
        super().__init__(markdown, parser_factory=_parser, open_links=False)

    @on(Markdown.LinkClicked)
    def open_link(self, event: Markdown.LinkClicked) -> None:
        """Open web addresses; name the others, which could be anything."""
        event.stop()
        if event.href.startswith(("https://", "http://")):
            self.app.open_url(event.href)
        else:
            self.app.notify(f"Only web addresses are opened; this one is {event.href[:200]}", markup=False)
