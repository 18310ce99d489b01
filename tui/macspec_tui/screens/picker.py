"""A dialog that narrows a list while the person types: the base of the session list and the history search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option


class Picker(ModalScreen[str | None]):
    """Returns the chosen value, or None. Subclasses say what fits a query."""

    BINDINGS = [
        Binding("escape", "cancel", "close", priority=True),
        Binding("up", "move(-1)", "up", priority=True),
        Binding("down", "move(1)", "down", priority=True),
        Binding("pageup", "move(-10)", show=False, priority=True),
        Binding("pagedown", "move(10)", show=False, priority=True),
        Binding("enter", "choose", "choose", priority=True),
    ]
    HEADING: ClassVar[str] = ""
    EMPTY: ClassVar[str] = "Nothing fits."
    HELP: ClassVar[str] = "Enter choose · Esc close"

    def __init__(self, query: str = "") -> None:
        super().__init__()
        self._query = query
        self._values: list[str] = []

    def find(self, query: str) -> Sequence[tuple[str, str]]:
        """Values that fit and what is shown for each, best first."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self.HEADING, classes="dialog-title", markup=False)
            yield Input(self._query, placeholder="type to search", compact=True, select_on_focus=False)
            yield OptionList(markup=False)
            yield Static(self.HELP, classes="dialog-help", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).focus()
        self.refill()

    def refill(self) -> None:
        """Search again and show what fits."""
        found = list(self.find(self.query_one(Input).value.strip()))
        self._values = [value for value, _ in found]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(Content(text)) for _, text in found] or [Option(self.EMPTY, disabled=True)])
        options.highlighted = 0 if found else None

    @property
    def chosen(self) -> str | None:
        """The highlighted value."""
        at = self.query_one(OptionList).highlighted
        return self._values[at] if self._values and at is not None else None

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if self._values:
            at = (options.highlighted or 0) + step
            options.highlighted = min(max(at, 0), len(self._values) - 1)

    def action_choose(self) -> None:
        if self.chosen is not None:
            self.dismiss(self.chosen)

    @on(Input.Changed)
    def _changed(self) -> None:
        self.refill()

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        if self._values:
            self.dismiss(self._values[event.option_index])
