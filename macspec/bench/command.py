"""``macspec bench``: measure, compare, plot and show."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from macspec import machine
from macspec.bench import analysis, compare, environment, export, plot, presets, report, runner
from macspec.bench.analysis import PLAIN
from macspec.bench.document import Report, SuiteInfo, measured_ladder, read, with_id
from macspec.bench.notices import Notice
from macspec.bench.quality import Difference
from macspec.bench.samples import Arm, Prompt, Sample, Settings
from macspec.cli_options import add_engine_options, engine_options
from macspec.download import ensure
from macspec.errors import MacspecError, RequestError

if TYPE_CHECKING:
    from macspec.runtime import Runtime

#: Seconds a quick run may measure, loading and reporting left out.
QUICK_S = 46.0
QUICK_PER_CATEGORY = 2
QUICK_WARM_UP = 9
PER_CATEGORY = 4
REPEATS = 2
TOKENS = 96
COOL_DOWN_S = 120.0
#: Differences whose logit gap is worked out after the run.
MAX_GAPS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command and of what can be done with its results."""
    from macspec.bench.arm_choice import add_arm_options

    add_engine_options(parser)
    add_arm_options(parser)
    group = parser.add_argument_group("prompts")
    group.add_argument("--quick", action="store_true", help="under a minute: every depth on a few prompts")
    group.add_argument(
        "--suite", metavar="NAMES", help=f"{', '.join(presets.SUITES)}, all or JSONL files, with commas (default: all)"
    )
    group.add_argument(
        "--prompts", type=int, metavar="N", help=f"prompts per category (default {PER_CATEGORY}, 0 = all)"
    )
    group.add_argument("--ctx", metavar="TOKENS", help="long contexts instead of suites, such as 1k,8k,32k")
    group.add_argument("--tokens", type=int, metavar="N", help=f"tokens per answer (default {TOKENS})")
    group.add_argument("--repeats", type=int, metavar="N", help=f"answers per arm and prompt (default {REPEATS})")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default 0: the best token")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="same seed, same text (default 0)")
    group.add_argument("--thinking", choices=("on", "off"), help="whether the model may think first")
    group.add_argument(
        "--cool-down", type=float, default=COOL_DOWN_S, metavar="S", help="longest wait for a hot machine"
    )
    group = parser.add_argument_group("results")
    group.add_argument("--json", metavar="FILE", help="write everything measured; - is standard output")
    group.add_argument("--csv", metavar="FILE", help="write one line per arm and category; - is standard output")
    group.add_argument("--markdown", action="store_true", help="print a card to post instead of the table")
    group.add_argument("--trace", metavar="FILE", help="also record draft confidences for macspec simulate")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    sub = actions.add_parser("compare", help="what became faster or slower between two results")
    sub.add_argument("first", metavar="A.json")
    sub.add_argument("second", metavar="B.json")
    sub = actions.add_parser("plot", help="draw a result as SVG")
    sub.add_argument("file", nargs="?", metavar="FILE", help="default: the newest result")
    sub.add_argument("-o", "--output", metavar="FILE", help="default: the result's name with .svg")
    sub = actions.add_parser("show", help="print a result again")
    sub.add_argument("file", nargs="?", metavar="FILE", help="default: the newest result")
    # Absent options must not overwrite what was given before the word "show".
    sub.add_argument("--markdown", action="store_true", default=argparse.SUPPRESS, help="as a card to post")
    sub.add_argument("--csv", metavar="FILE", default=argparse.SUPPRESS, help="write a CSV; - is standard output")


def run(options: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    action = {"compare": _compare, "plot": _plot, "show": _show}.get(options.action or "", _measure)
    return action(options)


def _compare(options: argparse.Namespace) -> int:
    found = compare.compare(read(Path(options.first)), read(Path(options.second)))
    sys.stdout.write(compare.table(found))
    return 1 if found.slower else 0


def _plot(options: argparse.Namespace) -> int:
    source = _result_path(options.file)
    target = Path(options.output) if options.output else Path(source.stem + ".svg")
    drawing = plot.svg(read(source))
    export.check_writable(target)
    export.write(target, drawing)
    print(f"wrote {target}")
    return 0


def _show(options: argparse.Namespace) -> int:
    found = read(_result_path(options.file))
    if options.csv:
        export.deliver(found, export.to_csv(found), _path(options.csv), None)
        if options.csv == "-":
            return 0
    sys.stdout.write(report.card(found) if options.markdown else report.table(found))
    return 0


def _result_path(text: str | None) -> Path:
    if text is not None:
        return Path(text)
    if not export.last_file().is_file():
        raise RequestError("There is no result yet; measure one with: macspec bench --quick")
    return export.last_file()


def _path(text: str | None) -> Path | None:
    return None if text in (None, "-") else Path(str(text))


def _check(options: argparse.Namespace) -> None:
    for name, least in (("tokens", 16), ("repeats", 1), ("prompts", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise RequestError(f"--{name} is {value}; it must be at least {least}.", param=name)
    if not 0 <= options.temperature <= 100:
        raise RequestError(f"--temperature is {options.temperature}; use 0 to 100.", param="temperature")
    if not 0 <= options.cool_down <= 3600:
        raise RequestError(f"--cool-down is {options.cool_down}; use 0 to 3600 seconds.", param="cool-down")
    if options.ctx and options.suite:
        raise RequestError("Give either --suite or --ctx.", param="ctx")
    for name in ("json", "csv", "trace"):
        path = _path(getattr(options, name))
        if path is not None:
            export.check_writable(path)


def _measure(options: argparse.Namespace) -> int:
    _check(options)
    if options.ctx:
        suites = [presets.long_context(tokens) for tokens in presets.parse_contexts(options.ctx)]
    else:
        suites = presets.load_all((options.suite or "all").split(","))
    per_category = (
        options.prompts if options.prompts is not None else QUICK_PER_CATEGORY if options.quick else PER_CATEGORY
    )
    prompts = runner.interleave_categories([p for s in suites for p in s.prompts], per_category or None)
    settings = Settings(
        max_tokens=options.tokens or TOKENS,
        temperature=options.temperature,
        seed=options.seed,
        thinking=None if options.thinking is None else options.thinking == "on",
    )

    from macspec.bench.arm_choice import choose_arms
    from macspec.progress import load_progress
    from macspec.runtime import Runtime

    ensure(options)
    with load_progress() as progress:
        engine = Runtime.load(**engine_options(options), progress=progress)
    arms, skipped = choose_arms(engine, options)
    result, outcome = _run(engine, arms, prompts, settings, options, suites, skipped)
    kept = export.keep(result)
    return _deliver(result, outcome, engine, prompts, options, kept)


def _run(
    engine: Runtime,
    arms: list[Arm],
    prompts: list[Prompt],
    settings: Settings,
    options: argparse.Namespace,
    suites: list[presets.Suite],
    skipped: list[Notice],
) -> tuple[Report, runner.Outcome]:
    from macspec.bench.arms import Canary

    info = machine.describe()
    before = machine.state()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    repeats = options.repeats or (1 if options.quick else REPEATS)
    deadline = None
    conditions = runner.Conditions(
        thermal=machine.thermal_level, canary=Canary(), cool_down_s=0.0 if options.quick else options.cool_down
    )
    progress = Progress()
    begun = time.perf_counter()
    warm = options.quick
    if warm:
        samples = runner.warm_up(arms, prompts[0], settings, progress, tokens=QUICK_WARM_UP, limit_s=QUICK_S / 4)
        deadline = QUICK_S - (time.perf_counter() - begun)
        if options.tokens is None:
            categories = len({p.category for p in prompts})
            fitting = runner.tokens_that_fit(samples, deadline, categories + categories % 2, len(arms))
            settings = dataclasses.replace(settings, max_tokens=fitting)
    outcome = runner.run(
        arms,
        prompts,
        settings,
        repeats=repeats,
        deadline_s=deadline,
        conditions=conditions,
        progress=progress,
        warm=warm,
    )
    progress.clear()
    if options.quick and not outcome.interrupted:
        # A quick run is meant to end by the clock.
        outcome.notices = [n for n in outcome.notices if n.kind != "cut_short"]
        outcome.complete = True
    after = machine.state()
    # Only arms that choose with our keyed noise can equal plain decoding at temperatures above 0.
    ours = {s.arm for s in outcome.samples if s.rounds}
    found = analysis.analyse(
        outcome.samples, prompts, [a.name for a in arms], compared=None if settings.temperature == 0 else ours
    )
    pair = engine.info()
    result = Report(
        started=started,
        elapsed_s=outcome.elapsed_s,
        complete=outcome.complete,
        quick=options.quick,
        repeats=repeats,
        settings=settings,
        machine=info,
        state_before=before,
        state_after=after,
        pair={key: value for key, value in pair.items() if not isinstance(value, (list, tuple, dict))},
        versions=environment.versions(),
        suites=tuple(SuiteInfo(s.name, s.sha256, len(s.prompts)) for s in suites),
        results=found.rows,
        differences=tuple(_with_gaps(found.differences, outcome.samples, prompts, arms)),
        warnings=(
            *environment.notices(info, before, after, outcome.canary),
            *skipped,
            *outcome.notices,
            *found.notices,
        ),
        excluded=found.excluded,
        canary=tuple(outcome.canary),
        ladder=measured_ladder(outcome.samples),
        samples=tuple(outcome.samples),
    )
    return with_id(result), outcome


def _with_gaps(
    differences: tuple[Difference, ...], samples: list[Sample], prompts: list[Prompt], arms: list[Arm]
) -> list[Difference]:
    """The differences with the target's logit gap at the first ones."""
    plain = {s.prompt: s for s in samples if s.arm == PLAIN and s.error is None}
    by_id = {p.id: p for p in prompts}
    by_name = {a.name: a for a in arms}
    result = list(differences)
    for index, difference in enumerate(differences[:MAX_GAPS]):
        tokens = plain[difference.prompt].tokens if difference.prompt in plain else ()
        if difference.expected is None or difference.found is None or not tokens:
            continue
        arm, prefix = by_name[difference.arm], tokens[: difference.position]
        gap = arm.gap(by_id[difference.prompt], prefix, difference.expected, difference.found)
        result[index] = dataclasses.replace(difference, gap=gap)
    return result


def _deliver(
    result: Report,
    outcome: runner.Outcome,
    engine: Runtime,
    prompts: list[Prompt],
    options: argparse.Namespace,
    kept: Path | None,
) -> int:
    from macspec.bench.document import dumps

    text = report.card(result) if options.markdown else report.table(result)
    # Whoever asked for data on standard output gets nothing else there.
    (sys.stderr if "-" in (options.json, options.csv) else sys.stdout).write(text)
    failures: list[MacspecError] = []
    for chosen, make in ((options.json, dumps), (options.csv, export.to_csv)):
        if chosen is not None:
            try:
                export.deliver(result, make(result), _path(chosen), kept)
            except MacspecError as error:
                failures.append(error)
    if options.trace and not outcome.interrupted:
        from macspec.bench.tracing import record

        header = {"target": engine.target.name, "drafter": result.pair.get("drafter"), "machine": result.machine.title}
        try:
            record(engine, prompts, result.settings, Path(options.trace), header)
        except MacspecError as error:
            failures.append(error)
    for failure in failures:
        print(f"macspec: {failure.message}", file=sys.stderr)
    if outcome.interrupted:
        return 130
    silent = [arm for arm in result.arms if not any(s.arm == arm and s.error is None for s in result.samples)]
    return 1 if failures or silent else 0


class Progress:
    """One line on a terminal's standard error; nothing when nobody looks."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int, arm: str, sample: Sample | None) -> None:
        if not self._shown:
            return
        speed = sample.decode_rate if sample is not None else None
        tail = "warming up" if sample is None else f"{speed:.1f} tok/s" if speed else "no rate"
        of = f"{done}/{total} " if total else ""
        sys.stderr.write(f"\r\x1b[2K{of}{arm}: {tail}"[:90])
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave the line empty."""
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
