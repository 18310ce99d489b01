"""A picture of a result: speed by category, accepted tokens per round, cost of rows with the depths chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from macspec.bench.analysis import ALL, PLAIN, Row
from macspec.bench.document import Report
from macspec.bench.drawing import INK, Drawing, Line, Rect, Shape, Text
from macspec.bench.report import pair_line

WIDTH = 960
MARGIN = 64
PANEL = 250
GAP = 64
SOFT, GRID, SHADE = "#667085", "#e4e7ec", "#f7d9a8"
#: Told apart in grey print and by colour-blind eyes (Okabe and Ito).
COLOURS = ("#8a94a6", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
MAX_ARMS = len(COLOURS)
#: Characters of an arm's name the legend has room for.
LEGEND = 16


def draw(report: Report) -> Drawing:
    """The picture of a report."""
    arms = _chosen_arms(report)
    shapes: list[Shape] = [
        Text(MARGIN, 34, pair_line(report), 18, bold=True),
        Text(MARGIN, 56, report.machine.title, 13, SOFT),
    ]
    top = 104.0
    shapes += _speed_panel(report, arms, top)
    top += PANEL + GAP + 34
    shown = report.row("auto") or report.best()
    if shown is not None and shown.spec_decode is not None:
        half = (WIDTH - 2 * MARGIN - GAP) / 2
        shapes += _histogram_panel(shown, top, MARGIN, half)
        if len(report.ladder) > 1:
            shapes += _ladder_panel(report, shown, top, MARGIN + half + GAP, half)
        top += PANEL + GAP
    height = top + 8
    footer = f"macspec bench, run {report.id}" if report.id else "macspec bench"
    shapes.append(Text(MARGIN, height - 14, footer, 11, SOFT))
    return Drawing(WIDTH, height, tuple(shapes))


def _chosen_arms(report: Report) -> list[str]:
    """All arms when they fit, else plain, whatever is not ours and the fastest of ours, in table order."""
    if len(report.arms) <= MAX_ARMS:
        return report.arms
    rows = [row for row in (report.row(arm) for arm in report.arms) if row is not None]
    ranked = sorted(rows, key=lambda r: (r.arm != PLAIN, r.spec_decode is not None, -(r.ratio_to_plain or 0)))
    kept = {row.arm for row in ranked[:MAX_ARMS]}
    return [arm for arm in report.arms if arm in kept]


def _speed_panel(report: Report, arms: Sequence[str], top: float) -> list[Shape]:
    categories = [*report.categories, ALL] if len(report.categories) > 1 else [ALL]
    rows = [[report.row(arm, c) for arm in arms] for c in categories]
    # Only the bars over all prompts have their interval drawn.
    tops = [r.tok_per_s_high if r.category == ALL else r.tok_per_s for group in rows for r in group if r]
    tops += [r.tok_per_s for group in rows for r in group if r]
    shapes: list[Shape] = [Text(MARGIN, top - 16, "Tokens per second by category", 14, bold=True)]
    y = _axis(shapes, max((t for t in tops if t), default=0) or 1, top, MARGIN, WIDTH - 2 * MARGIN)
    group_width = (WIDTH - 2 * MARGIN) / len(categories)
    bar = min(34.0, group_width * 0.8 / max(len(arms), 1))
    for number, (category, group) in enumerate(zip(categories, rows, strict=True)):
        left = MARGIN + group_width * number + (group_width - bar * len(arms)) / 2
        for place, row in enumerate(group):
            if row is not None and row.tok_per_s is not None:
                x = left + bar * place
                height = top + PANEL - y(row.tok_per_s)
                shapes.append(Rect(x + 1, y(row.tok_per_s), bar - 2, height, COLOURS[place]))
                if row.tok_per_s_low is not None and row.tok_per_s_high is not None and category == ALL:
                    middle = x + bar / 2
                    ends = ((middle, y(row.tok_per_s_low)), (middle, y(row.tok_per_s_high)))
                    shapes.append(Line(ends, INK, 1.5))
        centre = MARGIN + group_width * (number + 0.5)
        shapes.append(Text(centre, top + PANEL + 18, category, 12, anchor="middle"))
    step = (WIDTH - 2 * MARGIN) / max(len(arms), 1)
    for place, arm in enumerate(arms):
        x = MARGIN + step * place
        shapes.append(Rect(x, top + PANEL + 34, 12, 12, COLOURS[place]))
        shapes.append(Text(x + 18, top + PANEL + 44, arm[:LEGEND], 12))
    return shapes


def _histogram_panel(row: Row, top: float, left: float, width: float) -> list[Shape]:
    assert row.spec_decode is not None
    counts = row.spec_decode.accepted_histogram
    total = sum(counts) or 1
    title = f"Draft tokens accepted per round, {row.arm} (τ {row.acceptance_length or 0:.2f})"
    shapes: list[Shape] = [Text(left, top - 16, title, 14, bold=True)]
    y = _axis(shapes, 100 * max(counts, default=0) / total or 1, top, left, width, unit=" %")
    step = width / max(len(counts), 1)
    for value, count in enumerate(counts):
        height = top + PANEL - y(100 * count / total)
        shapes.append(Rect(left + step * value + 2, top + PANEL - height, step - 4, height, COLOURS[1]))
        shapes.append(Text(left + step * (value + 0.5), top + PANEL + 18, str(value), 12, anchor="middle"))
    return shapes


def _ladder_panel(report: Report, row: Row, top: float, left: float, width: float) -> list[Shape]:
    assert row.spec_decode is not None
    ladder = report.ladder
    title = f"Cost of a pass by rows; shaded: {row.arm} chose"
    shapes: list[Shape] = [Text(left, top - 16, title, 14, bold=True)]
    y = _axis(shapes, max(ms for _, ms in ladder), top, left, width, unit=" ms")
    most = int(max(rows for rows, _ in ladder))
    step = width / most
    chosen = row.spec_decode.depth_histogram
    total = sum(chosen) or 1
    for depth, count in enumerate(chosen[:most]):
        if count:
            height = PANEL * count / total
            shapes.append(Rect(left + step * depth + 2, top + PANEL - height, step - 4, height, SHADE))
            middle = left + step * (depth + 0.5)
            shapes.append(Text(middle, top + PANEL - 6, f"{100 * count / total:.0f} %", 11, SOFT, anchor="middle"))
    points = tuple((left + step * (rows - 0.5), y(ms)) for rows, ms in ladder)
    shapes.append(Line(points, COLOURS[1], 2, dots=3.5))
    for rows in range(1, most + 1):
        shapes.append(Text(left + step * (rows - 0.5), top + PANEL + 18, str(rows), 12, anchor="middle"))
    return shapes


def _axis(
    shapes: list[Shape], highest: float, top: float, left: float, width: float, *, unit: str = ""
) -> Callable[[float], float]:
    """Draw grid lines at round values and return the height of a value."""
    step = _round_step(highest)
    limit = step * max(1, -(-highest // step))

    def y(value: float) -> float:
        return top + PANEL * (1 - value / limit)

    for number in range(round(limit / step) + 1):
        value = step * number
        shapes.append(Line(((left, y(value)), (left + width, y(value))), INK if number == 0 else GRID, 1))
        shapes.append(Text(left - 8, y(value) + 4, f"{value:g}{unit}", 11, SOFT, anchor="end"))
    return y


def _round_step(highest: float) -> float:
    power = 10.0 ** len(str(int(highest))) / 100 if highest >= 1 else 0.01
    while highest / power > 6:
        for factor in (1, 2, 5):
            if highest / (power * factor) <= 6:
                return power * factor
        power *= 10
    return power
