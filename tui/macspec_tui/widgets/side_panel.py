"""Speculation, visible: speed, acceptance, the depth of every round and why, what rows cost here, memory, context."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from macspec.worker.protocol import EngineInfo, EngineStats
from macspec_tui import figures
from macspec_tui.live import LiveFigures, why
from macspec_tui.widgets.activity import meter
from macspec_tui.widgets.charts import bars, ladder
from macspec_tui.widgets.sizes import size_without_layout

_LADDER_HEIGHT = 4


class Section(Static):
    """A heading and its lines."""

    virtual_size = size_without_layout()

    def __init__(self, name: str, title: str) -> None:
        super().__init__("", id=f"section-{name}", classes="panel-section")
        self._title = title
        self.lines: list[str] = []
        self.display = False

    def show(self, lines: Sequence[str]) -> None:
        """Show these lines below the heading; nothing at all when there are none."""
        before, self.lines = self.lines, list(lines)
        if before == self.lines:
            return
        self.display = bool(lines)
        # A layout goes through every widget of the screen, so only where the height may have changed.
        same = len(before) == len(lines) and not any(self._wraps(line) for line in (*before, *lines))
        self.update(Content.assemble((self._title, "bold"), "\n" + "\n".join(lines)), layout=not same)

    def _wraps(self, line: str) -> bool:
        return cell_len(line) > self.content_size.width


class SidePanel(VerticalScroll, can_focus=False):
    """The panel. `show` is called a few times a second; what has not changed is not drawn again."""

    virtual_size = size_without_layout()

    def __init__(self) -> None:
        super().__init__(id="panel")

    def compose(self) -> ComposeResult:
        yield Section("speed", "Speed")
        yield Section("rounds", "Rounds")
        yield Section("why", "Why")
        yield Section("ladder", "Cost of a pass")
        yield Section("context", "Context")
        yield Section("memory", "Memory")

    def show(self, info: EngineInfo | None, live: LiveFigures, engine: EngineStats | None) -> None:
        """Bring every section up to date."""
        width = max(self.content_size.width - 2, 12)
        self._section("speed", speed_lines(live, width))
        self._section("rounds", round_lines(live, info, width))
        self._section("why", why_lines(info, live))
        self._section("ladder", ladder_lines(info, live, width))
        self._section("context", context_lines(info, live, width))
        self._section("memory", memory_lines(info, engine, live, width))

    def _section(self, name: str, lines: Sequence[str]) -> None:
        self.query_one(f"#section-{name}", Section).show(lines)


def speed_lines(live: LiveFigures, width: int) -> list[str]:
    """Tokens per second now and over the last rounds."""
    if not live.rounds:
        return ["no answer yet"]
    lines = [f"{live.rate:.1f} tok/s", bars(live.rates, width)]
    if live.stats is not None:
        lines[0] = f"{live.stats.generation_tps:.1f} tok/s over the answer"
    return lines


def round_lines(live: LiveFigures, info: EngineInfo | None, width: int) -> list[str]:
    """Totals, and two strips with one column per round: draft tokens verified and accepted."""
    totals = live.totals
    if not totals.rounds:
        return []
    top = float(max(info.max_depth if info else 0, 1))
    last = list(live.rounds)[-(width - 9) :]
    lines = [
        f"τ {totals.acceptance_length:.2f} tokens per round",
        f"accepted {totals.accepted} of {totals.verified} verified",
        f"         {totals.drafted} drafted",
        "verified " + bars([float(entry.verified) for entry in last], width - 9, top),
        "accepted " + bars([float(entry.accepted) for entry in last], width - 9, top),
    ]
    if totals.parked:
        lines.insert(3, f"plain {100 * totals.parked / totals.rounds:.0f} % of {totals.rounds} rounds")
    return lines


def why_lines(info: EngineInfo | None, live: LiveFigures) -> list[str]:
    """Why there is no drafter, or why the last round was as narrow as it was."""
    if info is not None and info.drafter is None:
        return [figures.without_drafter(info)]
    sentence = why(live.last, info.max_depth if info else 0)
    return [sentence] if sentence else []


def ladder_lines(info: EngineInfo | None, live: LiveFigures, width: int) -> list[str]:
    """The measured cost per row count with the last round's marked."""
    if info is None or not info.ladder:
        return [] if info is None or info.drafter is None else ["not measured yet: macspec profile"]
    rows = live.last.verified + 1 if live.last is not None else None
    chart = ladder(info.ladder, rows, width, _LADDER_HEIGHT)
    ends = f"{info.ladder[0]:.1f} ms at 1 row, {info.ladder[-1]:.1f} at {len(info.ladder)}"
    if rows is None:
        return [*chart, ends]
    now = f"now {rows} row" + ("s" if rows > 1 else "")
    if rows <= len(info.ladder):
        now += f", {info.ladder[rows - 1]:.1f} ms"
    return [*chart, now, ends]


def context_lines(info: EngineInfo | None, live: LiveFigures, width: int) -> list[str]:
    """How full the context is, and how much of the prompt needed no work."""
    if info is None or not info.max_context:
        return []
    used = live.context
    lines = [meter(used / info.max_context, width)]
    lines.append(f"{figures.tokens(used)} of {figures.tokens(info.max_context)} tokens")
    if live.prompt_tokens:
        lines.append(f"prompt {figures.tokens(live.prompt_tokens)}, {figures.tokens(live.cached_tokens)} cached")
    return lines


def memory_lines(info: EngineInfo | None, engine: EngineStats | None, live: LiveFigures, width: int) -> list[str]:
    """What the engine holds of this machine's memory."""
    if engine is None or not engine.memory_active:
        # Not every device counts its memory.
        return [f"model {figures.size(info.parameters_bytes)}"] if info is not None else []
    used = engine.memory_active + engine.memory_cache
    peak = max(used, engine.memory_peak, live.stats.peak_memory if live.stats else 0)
    whole = physical_memory()
    lines = [meter(used / whole, width)] if whole else []
    lines.append(f"{figures.size(used)} of {figures.size(whole)}" if whole else figures.size(used))
    lines.append(f"peak {figures.size(peak)}, prefixes {figures.size(engine.prefix_cache_bytes)}")
    return lines


def physical_memory() -> int:
    """Bytes of memory in this machine, 0 when the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
