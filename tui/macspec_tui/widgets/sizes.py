"""Spares growing widgets a second layout."""

from __future__ import annotations

from textual.geometry import Size
from textual.reactive import Reactive


def size_without_layout() -> Reactive[Size]:
    """``virtual_size`` for a widget that grows while text streams.

    Textual's own asks for another layout of the screen whenever a layout has changed it, so that every line of text
    costs two, and is drawn twice. The second finds nothing new here: heights follow from widths, and scroll bars that
    come or go ask for a layout themselves.
    """
    return Reactive(Size(0, 0), layout=False)
