"""The result of a run as one document: what the JSON file holds and every report is made from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from macspec.bench.analysis import ALL, PLAIN, Row
from macspec.bench.notices import Notice
from macspec.bench.quality import Difference
from macspec.bench.samples import Sample, Settings
from macspec.errors import RequestError
from macspec.machine import Machine, State
from macspec.request import Wire

FORMAT = "macspec-bench/1"
MAX_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class SuiteInfo(Wire):
    """Which prompts: figures of different hashes are not the same measurement."""

    name: str
    sha256: str
    prompts: int


@dataclass(frozen=True, slots=True)
class Report(Wire):
    """Everything about one run. ``id`` is made from its content."""

    format: str = FORMAT
    id: str = ""
    started: str = ""
    elapsed_s: float = 0.0
    complete: bool = True
    quick: bool = False
    repeats: int = 1
    settings: Settings = field(default_factory=Settings)
    machine: Machine = field(default_factory=lambda: Machine(system=""))
    state_before: State = field(default_factory=State)
    state_after: State = field(default_factory=State)
    #: model, revision, drafter, drafter_reason, kind, dtype, device, parameters_bytes, max_depth.
    pair: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    suites: tuple[SuiteInfo, ...] = ()
    results: tuple[Row, ...] = ()
    differences: tuple[Difference, ...] = ()
    warnings: tuple[Notice, ...] = ()
    #: Prompts left out of the rates because an answer repeats itself.
    excluded: tuple[str, ...] = ()
    #: ``[seconds, milliseconds]`` of the fixed piece of work that reveals throttling.
    canary: tuple[tuple[float, ...], ...] = ()
    #: ``[rows, milliseconds]`` of verification passes measured in this run.
    ladder: tuple[tuple[float, ...], ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def arms(self) -> list[str]:
        """Names of the arms in table order."""
        return list(dict.fromkeys(row.arm for row in self.results))

    @property
    def categories(self) -> list[str]:
        """Categories in table order, without ``all``."""
        return [c for c in dict.fromkeys(row.category for row in self.results) if c != ALL]

    def row(self, arm: str, category: str = ALL) -> Row | None:
        """The row of an arm and category."""
        return next((r for r in self.results if r.arm == arm and r.category == category), None)

    def best(self) -> Row | None:
        """The fastest arm of ours over all prompts that drafts at all; None when nothing was timed."""
        rows = [r for r in self.results if r.category == ALL and r.arm != PLAIN and r.spec_decode is not None]
        timed = [r for r in rows if r.ratio_to_plain is not None]
        return max(timed, key=lambda r: r.ratio_to_plain or 0.0, default=None)


def with_id(report: Report) -> Report:
    """The report with an id made from everything in it."""
    content = json.dumps(dataclasses.replace(report, id="").to_wire(), sort_keys=True)
    return dataclasses.replace(report, id=hashlib.sha256(content.encode()).hexdigest()[:12])


def dumps(report: Report) -> str:
    """JSON text of a report; figures are finite or null."""
    return json.dumps(report.to_wire(), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def loads(text: str, name: str) -> Report:
    """A report from JSON text; ``name`` is what to call it in errors."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} is not JSON; write it with: macspec bench --json FILE.") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise RequestError(f"{name} is not a result of macspec bench ({FORMAT}).")
    try:
        return Report.from_wire(values)
    except (TypeError, KeyError, AttributeError, ValueError, StopIteration) as error:
        raise RequestError(f"{name} is a damaged result of macspec bench: {error}.") from error


def read(path: Path) -> Report:
    """A report from a file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RequestError(f"{path} is too large to be a result of macspec bench.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}.") from error
    return loads(text, str(path))


def measured_ladder(samples: Sequence[Sample]) -> tuple[tuple[float, ...], ...]:
    """Median milliseconds of a verification pass per row count, from the rounds of this very run."""
    times: dict[int, list[float]] = {}
    for sample in samples:
        for entry in sample.rounds:
            times.setdefault(entry.verified + 1, []).append(entry.verify_ms)
    return tuple((float(rows), sorted(own)[len(own) // 2]) for rows, own in sorted(times.items()))
