"""Finds text in a conversation, place by place, and the widget that shows a place."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from macspec_tui.conversation import Message


@dataclass(frozen=True, slots=True)
class Place:
    """The ``number``-th occurrence (from 0) in a message."""

    message: Message
    number: int


class Finder:
    """The places of one text, and which of them is shown. The newest is shown first."""

    def __init__(self) -> None:
        self.text = ""
        self.places: list[Place] = []
        self.at = -1

    def step(self, text: str, step: int, path: list[Message]) -> Place | None:
        """The place to show next; a new text starts at its newest place. None when there is none."""
        places = [
            Place(message, number)
            for message in path
            for number in range(message.text.casefold().count(text.casefold()))
        ]
        if text != self.text or not self.places:
            self.at = len(places) - 1
        else:
            self.at = (self.at - step) % len(places) if places else -1
        self.text, self.places = text, places
        return places[self.at] if places else None

    @property
    def position(self) -> tuple[int, int]:
        """Which place is shown, counted from 1 at the newest, and how many there are."""
        return len(self.places) - self.at if self.places else 0, len(self.places)


def widget_at(root: Widget, text: str, number: int) -> Widget:
    """The widget below ``root`` that shows the ``number``-th occurrence of ``text``; ``root`` if Markdown hides it."""
    seen = 0
    for widget in root.walk_children(Static):
        visual = widget.visual
        if not widget.is_on_screen and not widget.display:
            continue
        if isinstance(visual, Content):
            seen += visual.plain.casefold().count(text.casefold())
            if seen > number:
                return widget
    return root
