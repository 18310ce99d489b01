"""Compares two results: what became faster or slower by more than the noise."""

from __future__ import annotations

from dataclasses import dataclass

from macspec.bench import analysis, stats
from macspec.bench.analysis import ALL, PLAIN
from macspec.bench.document import Report
from macspec.bench.report import clip, pair_line
from macspec.errors import RequestError


@dataclass(frozen=True, slots=True)
class Line:
    """One compared arm and category; ``second / first`` is in ``comparison``."""

    first_arm: str
    second_arm: str
    category: str
    first_rate: float
    second_rate: float
    comparison: stats.Comparison

    @property
    def verdict(self) -> str:
        """``faster``, ``slower`` or ``~`` when it may be noise."""
        if not self.comparison.significant:
            return "~"
        return "faster" if self.comparison.ratio.value > 1 else "slower"


@dataclass(frozen=True, slots=True)
class Outcome:
    """All lines, and what makes the two runs hard to compare."""

    lines: tuple[Line, ...]
    remarks: tuple[str, ...]

    @property
    def slower(self) -> bool:
        """Whether anything over all prompts became slower."""
        return any(line.verdict == "slower" for line in self.lines if line.category == ALL)


def compare(first: Report, second: Report) -> Outcome:
    """Compare arms of the same name; two runs with one drafting arm each compare those whatever they are called.

    Prompts are paired when they come from suites of the same hash.
    """
    pairs = [(arm, arm) for arm in first.arms if arm in second.arms]
    drafting = [[arm for arm in report.arms if arm != PLAIN] for report in (first, second)]
    if all(len(arms) == 1 for arms in drafting) and drafting[0] != drafting[1]:
        pairs.append((drafting[0][0], drafting[1][0]))
    if not pairs:
        raise RequestError(
            f"The two results have no arm in common: {', '.join(first.arms)} and {', '.join(second.arms)}."
        )
    excluded = {*first.excluded, *second.excluded}
    hashes = [{suite.sha256 for suite in report.suites} for report in (first, second)]
    paired = bool(hashes[0] & hashes[1])
    lines = []
    for arms in pairs:
        for category in [*(c for c in first.categories if c in second.categories), ALL]:
            line = _line(first, second, arms, category, excluded, paired)
            if line is not None:
                lines.append(line)
    if not lines:
        raise RequestError("The two results share no timed prompt and no category; there is nothing to compare.")
    return Outcome(tuple(lines), tuple(_remarks(first, second, paired)))


def _line(
    first: Report, second: Report, arms: tuple[str, str], category: str, excluded: set[str], paired: bool
) -> Line | None:
    rates = []
    for report, arm in zip((first, second), arms, strict=True):
        own = [s for s in report.samples if category in (ALL, s.category)]
        rates.append(analysis.rates_by_prompt(own, arm, tuple(excluded)))
    if paired:
        shared = [prompt for prompt in rates[0] if prompt in rates[1]]
        a, b = ([found[prompt] for prompt in shared] for found in rates)
    else:
        a, b = (list(found.values()) for found in rates)
    if not a or not b:
        return None
    return Line(*arms, category, stats.centre(a), stats.centre(b), stats.compare(a, b, paired=paired))


def _remarks(first: Report, second: Report, paired: bool) -> list[str]:
    found = []
    if not paired:
        found.append("The prompts differ; only whole categories can be compared, with less certainty.")
    if first.machine.title != second.machine.title:
        found.append(f"The machines differ: {first.machine.title} and {second.machine.title}.")
    if pair_line(first) != pair_line(second):
        found.append(f"The models differ: {pair_line(first)} and {pair_line(second)}.")
    if first.settings != second.settings:
        found.append("The settings (tokens, temperature, seed or thinking) differ.")
    for name in sorted({*first.versions, *second.versions}):
        a, b = first.versions.get(name), second.versions.get(name)
        if a != b:
            found.append(f"{name}: {a or 'absent'} and {b or 'absent'}.")
    return found


def table(outcome: Outcome) -> str:
    """The comparison as text of at most 80 columns."""
    lines = [f"{'arm':<20} {'category':<10} {'first':>8} {'second':>8} {'ratio':>7} {'95 % range':>11}  verdict"]
    for line in outcome.lines:
        name = line.first_arm if line.first_arm == line.second_arm else f"{line.first_arm} → {line.second_arm}"
        ratio = line.comparison.ratio
        interval = "" if ratio.low is None else f"{ratio.low:.2f}–{ratio.high:.2f}"
        lines.append(
            f"{name[:20]:<20} {line.category[:10]:<10} {line.first_rate:>8.1f} {line.second_rate:>8.1f} "
            f"{ratio.value:>7.3f} {interval:>11}  {line.verdict}"
        )
    lines += [clip(remark) for remark in outcome.remarks]
    return "\n".join(line.rstrip() for line in lines) + "\n"
