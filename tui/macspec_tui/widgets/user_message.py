"""What the person said."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as UiMessage
from textual.widgets import Static

from macspec_tui.clean import for_display
from macspec_tui.conversation import Message
from macspec_tui.widgets.message_actions import MessageActions

#: Lines shown of a long message until it is unfolded.
FOLD = 20


class UserMessage(MessageActions, Vertical):
    """A message of the person; a long one is folded and unfolds with Enter or a click."""

    BINDINGS = [Binding("e", "edit", "edit"), Binding("enter", "unfold", "unfold", show=False)]

    class Edit(UiMessage):
        """The person wants to say this differently."""

        def __init__(self, message: Message) -> None:
            super().__init__()
            self.message = message

    def __init__(self, message: Message, version: tuple[int, int] = (1, 1)) -> None:
        super().__init__(classes="message user" if version[1] > 1 else "message user -single")
        self.message: Message = message
        self._version = version
        self._unfolded = False

    def compose(self) -> ComposeResult:
        yield Static(self._content(), classes="user-text")
        yield Static(Content(self._foot_text()), classes="user-foot")

    def set_version(self, version: tuple[int, int]) -> None:
        """Say which of how many versions this is."""
        self._version = version
        self.set_class(version[1] <= 1, "-single")
        self.query_one(".user-foot", Static).update(Content(self._foot_text()))

    def on_click(self) -> None:
        self.action_unfold()

    def action_unfold(self) -> None:
        self._unfolded = not self._unfolded
        self.query_one(".user-text", Static).update(self._content())

    def action_edit(self) -> None:
        self.post_message(self.Edit(self.message))

    def _content(self) -> Content:
        lines = self.message.text.split("\n")
        if len(lines) > FOLD and not self._unfolded:
            shown = "\n".join(lines[: FOLD // 2])
            return Content(f"{for_display(shown)}\n… {len(lines) - FOLD // 2} more lines (Enter or click shows them)")
        return Content(for_display(self.message.text))

    def _foot_text(self) -> str:
        return f"‹ {self._version[0]}/{self._version[1]} ›" if self._version[1] > 1 else ""
