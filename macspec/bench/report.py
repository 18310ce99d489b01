"""Results for people: the terminal table (80 columns) and the Markdown card (at most 15 lines)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from macspec.bench.analysis import ALL, PLAIN, Row
from macspec.bench.document import Report

WIDTH = 80
BARS = "▁▂▃▄▅▆▇█"
#: Lines a card may have, so that it fits a forum post.
CARD_LINES = 15
#: Categories a card has room for.
CARD_CATEGORIES = 6
#: Values of a histogram shown one by one.
HISTOGRAM_VALUES = 8


def table(report: Report) -> str:
    """The whole report as text of at most 80 columns."""
    lines = [clip(report.machine.title), clip(pair_line(report)), clip(method_line(report)), ""]
    width = max((len(arm) for arm in report.arms), default=5)
    width = min(max(width, 8), 18)
    lines.append(f"{'arm':<{width}} {'tok/s':>7} {'× plain':>8} {'95 % range':>11} {'τ':>5} {'verified':>9}  identical")
    lines += [_arm_line(report.row(arm), width) for arm in report.arms]
    if len(report.categories) > 1:
        lines += ["", *_category_lines(report, width)]
    if energy := _energy(report):
        lines += ["", *wrap(f"tokens per joule: {energy}")]
    best = report.best()
    if best is not None and best.spec_decode is not None:
        spec = best.spec_decode
        parts = [("draft", spec.draft_ms), ("verify", spec.verify_ms), ("other", spec.other_ms)]
        if spec.redecided:
            parts.append((f"{spec.redecided} near-ties again", spec.redecide_ms))
        total = sum(ms for _, ms in parts)
        split = ", ".join(f"{name} {100 * ms / total:.0f} %" for name, ms in parts) if total > 0 else "no times"
        lines += ["", clip(f"{best.arm}: time {split}")]
        lines.append(f"  accepted  {histogram(spec.accepted_histogram)}")
        if len([n for n in spec.depth_histogram if n]) > 1:
            lines.append(f"  depths    {histogram(spec.depth_histogram)}")
    for found in report.warnings:
        lines += ["", *wrap(f"Note: {found.message} {found.remedy}")]
    if report.id:
        lines += ["", f"run {report.id}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def card(report: Report) -> str:
    """A Markdown card of at most 15 lines to post; the fastest drafting arm beside plain decoding."""
    best = report.best()
    title = f"**macspec bench** · {report.machine.title}"
    lines = [title + "  ", " · ".join((pair_line(report), _versions(report))), ""]
    if best is None:
        lines += ["| category | plain tok/s |", "|---|---:|"]
    else:
        lines += [f"| category | plain | {_cell(best.arm)} | × | τ |", "|---|---:|---:|---:|---:|"]
    for category in [*report.categories[:CARD_CATEGORIES], ALL]:
        plain = report.row(PLAIN, category)
        fast = report.row(best.arm, category) if best is not None else None
        cells = [category, _number(plain.tok_per_s if plain else None)]
        if best is not None:
            cells += [
                _number(fast.tok_per_s if fast else None),
                _number(fast.ratio_to_plain if fast else None, 2),
                _number(fast.acceptance_length if fast else None, 2),
            ]
        lines.append("| " + " | ".join(_cell(c) for c in cells) + " |")
    lines.append("")
    facts = []
    if best is not None and best.spec_decode is not None:
        facts.append(f"accepted per round `{bars(best.spec_decode.accepted_histogram)}`")
        facts.append(identical_sentence(report, best))
    if energy := _energy(report, {PLAIN, best.arm} if best is not None else {PLAIN}):
        facts.append(f"tokens per joule: {energy}")
    peak = max((row.peak_memory for row in report.results), default=0)
    if peak:
        facts.append(f"peak {peak / 2**30:.2f} GiB")
    lines.append(" · ".join(facts) + "  ")
    others = [report.row(arm) for arm in report.arms if best is None or arm not in (PLAIN, best.arm)]
    told = [f"{_cell(row.arm)} {row.ratio_to_plain:.2f}×" for row in others if row and row.ratio_to_plain is not None]
    kinds = list(dict.fromkeys(found.kind for found in report.warnings))
    tail = ([", ".join(told)] if told else []) + ([f"warnings: {', '.join(kinds)}"] if kinds else [])
    lines.append(" · ".join([*tail, f"run {report.id}"]))
    return "\n".join(lines[:CARD_LINES]) + "\n"


def pair_line(report: Report) -> str:
    """Model, revision, type and drafter."""
    pair = report.pair
    model = str(pair.get("model", "no model")) + (f"@{pair['revision']}" if pair.get("revision") else "")
    drafter = pair.get("drafter")
    shown = f"drafter {drafter}" if drafter else "no drafter"
    return f"{model} {pair.get('dtype', '')}, {shown}".replace(" ,", ",")


def method_line(report: Report) -> str:
    """How it was measured."""
    settings = report.settings
    prompts = len({s.prompt for s in report.samples})
    choice = "greedy" if settings.temperature == 0 else f"temperature {settings.temperature:g}"
    kept = "" if report.complete else ", cut short"
    many = "prompt" if prompts == 1 else "prompts"
    return f"{prompts} {many} × {report.repeats}, up to {settings.max_tokens} tokens, {choice}, A B B A order{kept}"


def identical_sentence(report: Report, row: Row) -> str:
    """``output identical to plain: 19/20 (first difference at token 412, logit gap 0.03)``."""
    if not row.compared_prompts:
        return "output not compared"
    kind = "plain greedy" if report.settings.temperature == 0 else "plain"
    text = f"output identical to {kind}: {row.identical_prompts}/{row.compared_prompts}"
    own = [d for d in report.differences if d.arm == row.arm]
    if own:
        first = min(own, key=lambda d: d.position)
        gap = "" if first.gap is None else f", logit gap {abs(first.gap):.2g}"
        text += f" (first difference at token {first.position}{gap})"
    return text


def _energy(report: Report, arms: Collection[str] | None = None) -> str:
    """``plain 1.20, auto 1.93``, or "" without a power source."""
    rows = [row for row in (report.row(arm) for arm in report.arms if arms is None or arm in arms) if row is not None]
    return ", ".join(f"{row.arm} {row.tok_per_joule:.3g}" for row in rows if row.tok_per_joule is not None)


def histogram(counts: Sequence[int]) -> str:
    """``0▃22% 1█61%`` and so on; what is beyond `HISTOGRAM_VALUES` is summed up."""
    total = sum(counts) or 1
    top = max(counts, default=0)
    parts = [f"{value}{_bar(count, top)}{100 * count / total:.0f}%" for value, count in enumerate(counts)]
    rest = sum(counts[HISTOGRAM_VALUES:])
    if rest:
        parts[HISTOGRAM_VALUES:] = [f"more {100 * rest / total:.0f}%"]
    return " ".join(parts)


def bars(counts: Sequence[int]) -> str:
    """One bar per value, tallest for the commonest."""
    return "".join(_bar(count, max(counts, default=0)) for count in counts)


def _bar(count: int, top: int) -> str:
    return BARS[min(len(BARS) - 1, round((len(BARS) - 1) * count / top))] if top else BARS[0]


def _arm_line(row: Row | None, width: int) -> str:
    if row is None:
        return ""
    interval = "" if row.ratio_low is None else f"{row.ratio_low:.2f}–{row.ratio_high:.2f}"
    spec = row.spec_decode
    rate = spec.acceptance_rate_verified if spec is not None else None
    verified = "" if rate is None else f"{100 * rate:.0f} %"
    same = f"{row.identical_prompts}/{row.compared_prompts}" if row.compared_prompts else ""
    if row.arm == PLAIN and row.identical:
        interval, same = "", ""
    length = _number(row.acceptance_length, 2) if row.acceptance_length is not None else ""
    return (
        f"{row.arm[:width]:<{width}} {_number(row.tok_per_s):>7} {_number(row.ratio_to_plain, 2):>8} "
        f"{interval:>11} {length:>5} {verified:>9}  {same}"
    )


def _category_lines(report: Report, width: int) -> list[str]:
    room = max(1, (WIDTH - width) // 10)
    lines = []
    for start in range(0, len(report.categories), room):
        some = report.categories[start : start + room]
        lines.append(f"{'× plain':<{width}}" + "".join(f" {c[:9]:>9}" for c in some))
        for arm in report.arms:
            if arm != PLAIN:
                cells = [report.row(arm, c) for c in some]
                lines.append(
                    f"{arm[:width]:<{width}}"
                    + "".join(f" {_number(c.ratio_to_plain if c else None, 2):>9}" for c in cells)
                )
    return lines


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _versions(report: Report) -> str:
    return ", ".join(
        f"{name} {report.versions[name]}" for name in ("macspec", "mlx", "mlx-lm") if name in report.versions
    )


def clip(text: str) -> str:
    """A line of at most 80 columns."""
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def wrap(text: str, width: int = WIDTH) -> list[str]:
    """Lines of at most ``width`` columns, broken at spaces."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}" if line else word
        while len(line) > width:
            lines.append(line[:width])
            line = line[width:]
    return [*lines, line] if line else lines
