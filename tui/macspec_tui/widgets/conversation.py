"""The scrolling conversation. It follows its end only while the reader is there, and holds a window of messages.

A long session keeps only its newest messages as widgets; earlier ones are mounted when the reader scrolls up to them,
so opening a session and its memory do not depend on its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message as UiMessage
from textual.widgets import Static

from macspec_tui.conversation import Message
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.note import Note
from macspec_tui.widgets.sizes import size_without_layout
from macspec_tui.widgets.user_message import UserMessage

#: Messages mounted at once when a conversation opens; as many follow until there is something to scroll.
FIRST = 2
#: Lines above the view that count as something to scroll.
SPARE = 10
#: Messages added when the reader reaches the top.
PAGE = 12
#: Heights of the view kept mounted while following the end. Every layout goes through all that is mounted: with 40
#: messages showing a new line took three times as long as with 3.
KEEP = 2

Versions = Callable[[Message], tuple[int, int]]


class Earlier(Static):
    """Stands for the messages that are not mounted."""

    class Wanted(UiMessage):
        """The person wants to see them."""

    def on_click(self) -> None:
        self.post_message(self.Wanted())


class ConversationView(VerticalScroll, can_focus=False):
    """Shows the path of a conversation, notes in between, and the answer that is growing."""

    virtual_size = size_without_layout()
    BINDINGS = [Binding("pageup", "page_up", show=False), Binding("pagedown", "page_down", show=False)]

    class Following(UiMessage):
        """Whether new text is being followed has changed."""

        def __init__(self, following: bool) -> None:
            super().__init__()
            self.following = following

    def __init__(self, versions: Versions) -> None:
        super().__init__(id="conversation")
        self._versions = versions
        self._path: list[Message] = []
        self._first = 0
        self._widgets: dict[str, UserMessage | AnswerView] = {}
        self._was_following = True
        self._loading_earlier = False

    def on_mount(self) -> None:
        self.anchor()

    @property
    def following(self) -> bool:
        """Whether the end stays in view when it grows."""
        return not self._anchor_released

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._anchor_released = False
        self.anchor()
        self._say_following()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._anchor_released and self.scroll_y >= self.max_scroll_y - 2 and new_value > old_value:
            self._anchor_released = False
        self._say_following()
        if self._anchor_released and new_value <= 0 and old_value > new_value and self._first:
            self.call_later(self.show_earlier)

    async def show(self, path: Sequence[Message]) -> None:
        """Show this path, keeping the widgets of the part that is shown already."""
        same = 0
        while same < min(len(path), len(self._path)) and path[same].id == self._path[same].id:
            same += 1
        keep = same if same > self._first else 0
        removed = [self._widgets.pop(message.id) for message in self._path[keep:] if message.id in self._widgets]
        with self.app.batch_update():
            if keep == 0:
                await self.remove_children()
                self._widgets.clear()
                self._first = max(len(path) - FIRST, 0)
            else:
                # Notes below the fork belong to what is no longer shown.
                last = self._widgets[path[keep - 1].id]
                below = self.children[self.children.index(last) + 1 :]
                await self.remove_children(
                    [widget for widget in below if widget in removed or isinstance(widget, Note)]
                )
            self._path = list(path)
            start = max(keep, self._first)
            await self.mount_all([self._make(message) for message in path[start:]])
            await self._mark_earlier()
            self.refresh_versions()
        if self._first:
            self.call_after_refresh(self._fill)

    async def add(self, message: Message) -> None:
        """Show a message at the end."""
        self._path.append(message)
        await self.mount(self._make(message))
        await self._drop_old()

    async def begin_answer(self) -> AnswerView:
        """Show an answer that is about to grow."""
        view = AnswerView()
        await self.mount(view)
        return view

    async def end_answer(self, view: AnswerView, message: Message | None) -> None:
        """The growing answer became ``message``; without one it disappears."""
        if message is None:
            await view.remove()
            return
        self._path.append(message)
        self._widgets[message.id] = view
        self.refresh_versions()

    async def note(self, text: str, kind: str = "info") -> Note:
        """Say something below the conversation."""
        note = Note(text, kind)
        await self.mount(note)
        return note

    async def clear(self) -> None:
        """Show nothing."""
        await self.show([])

    def refresh_versions(self) -> None:
        """Bring the version counts up to date."""
        for widget in self._widgets.values():
            if widget.message is not None:
                widget.set_version(self._versions(widget.message))

    def widget_of(self, message: Message) -> UserMessage | AnswerView | None:
        """The widget that shows a message, None while it is not mounted."""
        return self._widgets.get(message.id)

    async def reveal(self, message: Message) -> UserMessage | AnswerView | None:
        """Mount as much as is needed to show a message; None when it is not on the shown path."""
        index = next((i for i, shown in enumerate(self._path) if shown.id == message.id), None)
        if index is None:
            return None
        while index < self._first:
            await self.show_earlier()
        return self._widgets.get(message.id)

    async def show_earlier(self, count: int = PAGE) -> None:
        """Mount earlier messages above, keeping what is in view where it is."""
        if self._loading_earlier or not self._first:
            return
        self._loading_earlier = True
        try:
            before = self.virtual_size.height
            start = max(self._first - count, 0)
            new = [self._make(message) for message in self._path[start : self._first]]
            anchor = self._widgets[self._path[self._first].id]
            self._first = start
            await self.mount_all(new, before=anchor)
            await self._mark_earlier()
            self.refresh_versions()
            self.call_after_refresh(self._keep_place, before)
        finally:
            self._loading_earlier = False

    def focus_last(self) -> None:
        """Give the focus to the newest message."""
        for message in reversed(self._path):
            if message.id in self._widgets:
                self._widgets[message.id].focus()
                return

    def on_message_actions_neighbour(self, event: AnswerView.Neighbour) -> None:
        """Move the focus from message to message; past the last one it returns to the prompt."""
        event.stop()
        shown = [self._widgets[message.id] for message in self._path if message.id in self._widgets]
        index = next((i for i, widget in enumerate(shown) if widget is event.widget), None)
        if index is None:
            return
        if index + event.step >= len(shown):
            self.screen.focus_next("Prompt")
        elif index + event.step >= 0:
            shown[index + event.step].focus()

    async def on_earlier_wanted(self, event: Earlier.Wanted) -> None:
        event.stop()
        await self.show_earlier()

    async def _fill(self) -> None:
        """Mount earlier messages until there is something to scroll to, which then mounts a page."""
        if self._first and self.is_mounted and self.virtual_size.height < self.size.height + SPARE:
            await self.show_earlier(FIRST)
            self.call_after_refresh(self._fill)

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        super()._on_mouse_scroll_up(event)
        if self.scroll_y <= 0 and self._first:
            self.call_later(self.show_earlier)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        super()._on_mouse_scroll_down(event)
        # At the end already nothing moves, and so nothing would notice that the reader is there.
        if self.scroll_y >= self.max_scroll_y:
            self.follow()

    def _keep_place(self, height_before: int) -> None:
        if self._anchor_released:
            self.scroll_to(y=self.scroll_y + self.virtual_size.height - height_before, animate=False, force=True)

    def _make(self, message: Message) -> UserMessage | AnswerView:
        version = self._versions(message)
        widget: UserMessage | AnswerView
        widget = UserMessage(message, version) if message.role == "user" else AnswerView(message, version)
        self._widgets[message.id] = widget
        return widget

    async def _mark_earlier(self) -> None:
        found = self.query(Earlier)
        if not self._first:
            await found.remove()
            return
        text = f"↑ {self._first} earlier messages: scroll up or click"
        if found:
            found.first().update(Content(text))
        else:
            await self.mount(Earlier(Content(text), classes="earlier"), before=0)

    async def _drop_old(self) -> None:
        if not self.following:
            return
        old, first = self._first, self._first_kept()
        if first <= old:
            return
        gone = [self._widgets.pop(message.id) for message in self._path[old:first]]
        self._first = first
        oldest = self._widgets[self._path[first].id]
        notes = [w for w in self.children[: self.children.index(oldest)] if isinstance(w, Note)]
        await self.remove_children([*gone, *notes])
        await self._mark_earlier()

    def _first_kept(self) -> int:
        """Index of the oldest message that the newest `KEEP` heights of the view need."""
        height, index = 0, len(self._path)
        while index > self._first and height < KEEP * self.size.height:
            index -= 1
            height += self._widgets[self._path[index].id].virtual_region_with_margin.height
        return min(index, max(len(self._path) - FIRST, 0))

    def _say_following(self) -> None:
        if self.following != self._was_following:
            self._was_following = self.following
            self.post_message(self.Following(self.following))
