"""What every message can do when it has the focus: be copied, show another version, give the focus back."""

from __future__ import annotations

from textual.binding import Binding
from textual.message import Message as UiMessage
from textual.widget import Widget

from macspec_tui.conversation import Message


class MessageActions(Widget, can_focus=True):
    """Mixin of the message widgets. Keys work on the message that has the focus."""

    BINDINGS = [
        Binding("c", "copy", "copy"),
        Binding("left", "version(-1)", "older version"),
        Binding("right", "version(1)", "newer version"),
        Binding("up,k", "neighbour(-1)", "previous"),
        Binding("down,j", "neighbour(1)", "next"),
    ]

    message: Message | None

    class Copy(UiMessage):
        """The person wants this message in the clipboard."""

        def __init__(self, message: Message) -> None:
            super().__init__()
            self.message = message

    class Version(UiMessage):
        """The person wants to see another version of this message."""

        def __init__(self, message: Message, step: int) -> None:
            super().__init__()
            self.message = message
            self.step = step

    class Neighbour(UiMessage):
        """The person moves to the message before or after this one."""

        def __init__(self, widget: Widget, step: int) -> None:
            super().__init__()
            self.widget = widget
            self.step = step

    def action_copy(self) -> None:
        """Ask for the source text in the clipboard."""
        if self.message is not None:
            self.post_message(self.Copy(self.message))

    def action_version(self, step: int) -> None:
        """Ask for the version before or after."""
        if self.message is not None:
            self.post_message(self.Version(self.message, step))

    def action_neighbour(self, step: int) -> None:
        """Ask for the focus to move."""
        self.post_message(self.Neighbour(self, step))
