"""Search in what was typed before."""

from __future__ import annotations

from collections.abc import Sequence

from macspec_tui.clean import for_display
from macspec_tui.history import PromptHistory
from macspec_tui.screens.picker import Picker

_SHOWN = 200


class HistorySearch(Picker):
    """Returns the text to put into the prompt."""

    HEADING = "What you typed before"
    EMPTY = "Nothing you typed fits."
    HELP = "Enter put into the prompt · Esc close"

    def __init__(self, history: PromptHistory, query: str = "") -> None:
        super().__init__(query)
        self._history = history

    def find(self, query: str) -> Sequence[tuple[str, str]]:
        return [(text, for_display(" ⏎ ".join(text.split("\n")))) for text in self._history.search(query)[:_SHOWN]]
