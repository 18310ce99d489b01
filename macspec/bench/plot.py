"""A picture of a result as SVG: speed by category, accepted tokens per round, cost of rows with chosen depths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from macspec.bench.analysis import ALL, PLAIN, Row
from macspec.bench.document import Report
from macspec.bench.report import pair_line

WIDTH = 960
MARGIN = 56
PANEL = 250
GAP = 56
INK, SOFT, GRID, PAPER = "#1f2430", "#667085", "#e4e7ec", "#ffffff"
#: Told apart in grey print and by colour-blind eyes (Okabe and Ito).
COLOURS = ("#8a94a6", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
MAX_ARMS = len(COLOURS)


def svg(report: Report) -> str:
    """The picture of a report, complete with fonts every system has and no script."""
    arms = _chosen_arms(report)
    best = report.best()
    parts = [_text(MARGIN, 34, pair_line(report), 18, weight="600"), _text(MARGIN, 56, report.machine.title, 13, SOFT)]
    top = 104.0
    parts += _speed_panel(report, arms, top)
    top += PANEL + GAP + 34
    if best is not None and best.spec_decode is not None:
        half = (WIDTH - 2 * MARGIN - GAP) / 2
        parts += _histogram_panel(best, top, MARGIN, half)
        if len(report.ladder) > 1:
            parts += _ladder_panel(report, best, top, MARGIN + half + GAP, half)
        top += PANEL + GAP
    height = top + 8
    footer = f"macspec bench, run {report.id}" if report.id else "macspec bench"
    parts.append(_text(MARGIN, height - 14, footer, 11, SOFT))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" font-family="Helvetica, Arial, sans-serif" role="img">\n'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _chosen_arms(report: Report) -> list[str]:
    """All arms when they fit, else plain, the fastest ones and whatever is not ours, in table order."""
    if len(report.arms) <= MAX_ARMS:
        return report.arms
    rows = [row for row in (report.row(arm) for arm in report.arms) if row is not None]
    ranked = sorted(rows, key=lambda r: (r.arm != PLAIN, r.spec_decode is not None, -(r.ratio_to_plain or 0)))
    kept = {row.arm for row in ranked[:MAX_ARMS]}
    return [arm for arm in report.arms if arm in kept]


def _speed_panel(report: Report, arms: Sequence[str], top: float) -> list[str]:
    categories = [*report.categories, ALL] if len(report.categories) > 1 else [ALL]
    rows = [[report.row(arm, c) for arm in arms] for c in categories]
    highest = max((r.tok_per_s_high or r.tok_per_s or 0 for group in rows for r in group if r), default=0) or 1
    parts = [_text(MARGIN, top - 14, "Tokens per second by category", 14, weight="600")]
    y = _axis(parts, highest, top, MARGIN, WIDTH - 2 * MARGIN)
    group_width = (WIDTH - 2 * MARGIN) / len(categories)
    bar = min(34.0, group_width * 0.8 / max(len(arms), 1))
    for number, (category, group) in enumerate(zip(categories, rows, strict=True)):
        left = MARGIN + group_width * number + (group_width - bar * len(arms)) / 2
        for place, row in enumerate(group):
            if row is not None and row.tok_per_s is not None:
                x = left + bar * place
                parts.append(_rect(x + 1, y(row.tok_per_s), bar - 2, top + PANEL - y(row.tok_per_s), COLOURS[place]))
                if row.tok_per_s_low is not None and row.tok_per_s_high is not None and category == ALL:
                    middle = x + bar / 2
                    parts.append(_line(middle, y(row.tok_per_s_low), middle, y(row.tok_per_s_high), INK, 1.5))
        centre = MARGIN + group_width * (number + 0.5)
        parts.append(_text(centre, top + PANEL + 18, category, 12, anchor="middle"))
    step = (WIDTH - 2 * MARGIN) / max(len(arms), 1)
    for place, arm in enumerate(arms):
        x = MARGIN + step * place
        parts.append(_rect(x, top + PANEL + 34, 12, 12, COLOURS[place]))
        parts.append(_text(x + 18, top + PANEL + 44, arm[:16], 12))
    return parts


def _histogram_panel(best: Row, top: float, left: float, width: float) -> list[str]:
    assert best.spec_decode is not None
    counts = best.spec_decode.accepted_histogram
    total = sum(counts) or 1
    title = f"Accepted per round, {best.arm} (τ {best.acceptance_length or 0:.2f})"
    parts = [_text(left, top - 14, title, 14, weight="600")]
    y = _axis(parts, 100 * max(counts, default=0) / total or 1, top, left, width, unit=" %")
    step = width / max(len(counts), 1)
    for value, count in enumerate(counts):
        height = top + PANEL - y(100 * count / total)
        parts.append(_rect(left + step * value + 2, top + PANEL - height, step - 4, height, COLOURS[1]))
        parts.append(_text(left + step * (value + 0.5), top + PANEL + 18, str(value), 12, anchor="middle"))
    return parts


def _ladder_panel(report: Report, best: Row, top: float, left: float, width: float) -> list[str]:
    assert best.spec_decode is not None
    ladder = report.ladder
    parts = [_text(left, top - 14, "Cost of a pass by rows; shaded: chosen", 14, weight="600")]
    y = _axis(parts, max(ms for _, ms in ladder), top, left, width, unit=" ms")
    most = int(max(rows for rows, _ in ladder))
    step = width / most
    chosen = best.spec_decode.depth_histogram
    total = sum(chosen) or 1
    for depth, count in enumerate(chosen[:most]):
        if count:
            height = PANEL * count / total
            parts.append(_rect(left + step * depth + 2, top + PANEL - height, step - 4, height, COLOURS[2], 0.35))
    points = [(left + step * (rows - 0.5), y(ms)) for rows, ms in ladder]
    path = " ".join(f"{x:.1f},{level:.1f}" for x, level in points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[1]}" stroke-width="2"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{level:.1f}" r="3.5" fill="{COLOURS[1]}"/>' for x, level in points]
    for rows in range(1, most + 1):
        parts.append(_text(left + step * (rows - 0.5), top + PANEL + 18, str(rows), 12, anchor="middle"))
    return parts


def _axis(
    parts: list[str], highest: float, top: float, left: float, width: float, *, unit: str = ""
) -> Callable[[float], float]:
    """Draw grid lines at round values and return the height of a value."""
    step = _round_step(highest)
    limit = step * max(1, -(-highest // step))

    def y(value: float) -> float:
        return top + PANEL * (1 - value / limit)

    for number in range(round(limit / step) + 1):
        value = step * number
        parts.append(_line(left, y(value), left + width, y(value), INK if number == 0 else GRID, 1))
        parts.append(_text(left - 8, y(value) + 4, f"{value:g}{unit}", 11, SOFT, anchor="end"))
    return y


def _round_step(highest: float) -> float:
    power = 10.0 ** len(str(int(highest))) / 100 if highest >= 1 else 0.01
    while highest / power > 6:
        for factor in (1, 2, 5):
            if highest / (power * factor) <= 6:
                return power * factor
        power *= 10
    return power


def _text(
    x: float, y: float, text: str, size: int, colour: str = INK, *, anchor: str = "start", weight: str = "400"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _rect(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> str:
    shade = "" if opacity == 1.0 else f' fill-opacity="{opacity}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}" fill="{colour}"{shade}/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
