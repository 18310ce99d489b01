"""The list of conversations: search, open, delete."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.binding import Binding
from textual.widgets import Static

from macspec_tui.clean import for_display
from macspec_tui.screens.picker import Picker
from macspec_tui.store import SessionStore

#: Columns from which the time of day and the number of turns are shown too.
WIDE = 60


class SessionsScreen(Picker):
    """Returns the name of the session to open."""

    HEADING = "Conversations"
    EMPTY = "No saved conversation fits."
    HELP = "Enter open · Ctrl+X delete · Esc close"
    BINDINGS = [Binding("ctrl+x", "delete", "delete", priority=True)]

    def __init__(self, store: SessionStore, current: str, query: str = "") -> None:
        super().__init__(query)
        self._store = store
        self._current = current
        self._doomed: str | None = None

    def find(self, query: str) -> Sequence[tuple[str, str]]:
        rows = []
        for summary in self._store.list(query):
            here = "•" if summary.id == self._current else " "
            if self.app.size.width < WIDE:
                before = f"{here} {_when(summary.updated, '%d %b')}  "
            else:
                before = f"{here} {_when(summary.updated, '%d %b %H:%M')}  {summary.turns:>3}  "
            text = before + for_display(summary.title)
            if summary.match and summary.match != summary.title:
                text += "\n" + " " * len(before) + for_display(summary.match)
            rows.append((summary.id, text))
        return rows

    def action_delete(self) -> None:
        """Delete the highlighted conversation when asked twice."""
        name = self.chosen
        if name is None:
            return
        if name == self._current:
            self._say("This conversation is open; start a /new one first.")
        elif name != self._doomed:
            self._doomed = name
            self._say("Press Ctrl+X again to delete it for good.")
        else:
            self._store.delete(name)
            self._doomed = None
            self._say(self.HELP)
            self.refill()

    def action_move(self, step: int) -> None:
        self._doomed = None
        self._say(self.HELP)
        super().action_move(step)

    def _say(self, text: str) -> None:
        self.query_one(".dialog-help", Static).update(text)


def _when(seconds: float, form: str) -> str:
    return time.strftime(form, time.localtime(seconds))
