"""Small charts out of text: a line of bars, and the cost ladder with the present row count marked."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def bars(values: Sequence[float], width: int, top: float | None = None) -> str:
    """The last ``width`` values as one line of bars, the highest (or ``top``) as a full one. A zero is a dot."""
    shown = list(values)[-width:]
    highest = top if top else max(shown, default=0.0)
    return "".join(_bar(value, highest) for value in shown)


def _bar(value: float, highest: float) -> str:
    if value <= 0 or highest <= 0:
        return "·"
    return _BARS[min(int(value / highest * len(_BARS)), len(_BARS) - 1)]


def ladder(costs: Sequence[float], rows: int | None, width: int, height: int) -> list[str]:
    """The cost ladder as a chart: one column per row count, ``height`` lines of bars and one that marks ``rows``.

    Wide charts use two cells per column. More columns than fit are thinned, the marked one kept.
    """
    if not costs:
        return []
    columns = list(range(1, len(costs) + 1))
    cell = 2 if 2 * len(columns) <= width else 1
    if len(columns) > width:
        step = -(-len(columns) // width)
        columns = [n for n in columns if (n - 1) % step == 0]
    highest = max(costs)
    lines = []
    for level in range(height, 0, -1):
        text = ""
        for n in columns:
            eighths = round(costs[n - 1] / highest * height * 8) - 8 * (level - 1)
            mark = " " if eighths <= 0 else _BARS[min(eighths, 8) - 1]
            text += mark * cell if cell == 1 else mark + " "
        lines.append(text)
    if rows is None:
        return lines
    nearest = min(columns, key=lambda n: abs(n - rows))
    return [*lines, " " * (cell * columns.index(nearest)) + "▲"]
