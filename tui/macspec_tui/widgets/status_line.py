"""One line of numbers, all of them the engine's: model, speed, acceptance, depth, context, memory."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from macspec.worker.protocol import EngineInfo, EngineStats
from macspec_tui import figures
from macspec_tui.live import LiveFigures


class StatusLine(Static):
    """Shows as many parts as fit, the most useful first; none is cut in half."""

    def __init__(self) -> None:
        super().__init__("", id="status", markup=False)
        self._parts: Sequence[str] = ()
        self.line = ""
        self._drawn = ""

    def show(self, parts: Sequence[str]) -> None:
        """Show these parts, ordered by importance."""
        self._parts = parts
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        width = max(self.content_size.width, 1)
        self.line = join_fitting(self._parts, width, " · ")
        # To the edge, because terminals without colours show the line reversed.
        drawn = self.line + " " * (width - cell_len(self.line))
        if drawn != self._drawn:
            self._drawn = drawn
            self.update(Content(drawn), layout=False)


def join_fitting(parts: Sequence[str], width: int, between: str) -> str:
    """As many parts, from the first on, as fit ``width`` cells; the first is shortened if even it does not."""
    shown: list[str] = []
    for part in parts:
        if not part:
            continue
        if cell_len(between.join([*shown, part])) <= width:
            shown.append(part)
    if not shown and parts:
        text = parts[0]
        while text and cell_len(text) > width - 1:
            text = text[:-1]
        return text + "…"
    return between.join(shown)


def status_parts(info: EngineInfo | None, live: LiveFigures, engine: EngineStats | None, state: str) -> list[str]:
    """The parts of the status line, the most useful first."""
    if info is None:
        return [state]
    parts = [short_name(info.model)]
    if state:
        parts.append(state)
    rate = live.stats.generation_tps if live.stats else live.rate
    if rate:
        parts.append(f"{rate:.1f} tok/s")
    totals = live.totals
    if live.last is not None and totals.drafted:
        parts.append(f"accepted {totals.accepted_per_round:.1f}/{info.max_depth}")
        # While it answers the last round counts; afterwards that one says little.
        parts.append(f"depth {totals.mean_depth:.1f}" if live.stats else f"depth {live.last.verified}")
    elif info.drafter is None:
        parts.append("no drafter")
    if live.context:
        share = 100 * live.context / info.max_context if info.max_context else 0
        limit = f"/{figures.tokens(info.max_context)} ({share:.0f} %)" if info.max_context else ""
        parts.append(f"ctx {figures.tokens(live.context)}{limit}")
    peak = live.stats.peak_memory if live.stats else (engine.memory_peak if engine else 0)
    if peak:
        parts.append(f"peak {figures.size(peak)}")
    return parts


def short_name(model: str) -> str:
    """The last part of a repository or path."""
    return model.rstrip("/").rpartition("/")[2]
