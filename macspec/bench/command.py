"""``macspec bench``: measure, compare, plot and show."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from macspec.bench import compare, drawing, export, plot, presets, report, runner
from macspec.bench.arm_choice import add_arm_options, check_arm_options
from macspec.bench.document import Report, dumps, read
from macspec.bench.energy import PowerCommand
from macspec.bench.progress import Progress
from macspec.bench.samples import Prompt, Settings
from macspec.cli_options import add_engine_options, engine_options
from macspec.errors import MacspecError, RequestError

if TYPE_CHECKING:
    from macspec.runtime import Runtime

#: Seconds from the start of the command after which a quick run begins no further turn.
QUICK_S = 54.0
QUICK_PER_CATEGORY = 2
PER_CATEGORY = 4
REPEATS = 2
TOKENS = 96
COOL_DOWN_S = 120.0
#: How a picture may be written, by the ending of its name.
PICTURES = (".svg", ".png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command and of what can be done with its results."""
    add_engine_options(parser)
    add_arm_options(parser)
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--quick", action="store_true", help="within a minute: plain, two depths and auto on a few prompts"
    )
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
    group.add_argument(
        "--power",
        metavar="COMMAND",
        help="a command that prints the watts drawn now, one number a line: tokens per joule",
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
    sub = actions.add_parser("plot", help="draw a result as SVG or PNG")
    sub.add_argument("file", nargs="?", metavar="FILE", help="default: the newest result")
    sub.add_argument(
        "-o", "--output", metavar="FILE", help="ends in .svg or .png (default: the result's name and .svg)"
    )
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
    if target.suffix.lower() not in PICTURES:
        raise RequestError(f"{target} is no picture's name; let it end in {' or '.join(PICTURES)}.")
    export.check_writable(target)
    picture = plot.draw(read(source))
    if target.suffix.lower() == ".png":
        export.write(target, drawing.to_png(picture))
    else:
        export.write(target, drawing.to_svg(picture))
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
    """Refuse everything that can be seen to be wrong before a model is loaded."""
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
    check_arm_options(options)
    for name in ("json", "csv", "trace"):
        path = _path(getattr(options, name))
        if path is not None:
            export.check_writable(path)


def _measure(options: argparse.Namespace) -> int:
    begun = time.perf_counter()
    _check(options)
    if options.ctx:
        suites = [presets.long_context(tokens) for tokens in presets.parse_contexts(options.ctx)]
    else:
        suites = presets.load_all((options.suite or "all").split(","))
    per_category = QUICK_PER_CATEGORY if options.quick else PER_CATEGORY
    if options.prompts is not None:
        per_category = options.prompts
    prompts = runner.interleave_categories([p for s in suites for p in s.prompts], per_category or None)
    settings = Settings(
        max_tokens=options.tokens or TOKENS,
        temperature=options.temperature,
        seed=options.seed,
        thinking=None if options.thinking is None else options.thinking == "on",
    )
    with contextlib.ExitStack() as held:
        power = held.enter_context(PowerCommand(options.power)) if options.power else None

        from macspec.bench.arm_choice import choose_arms
        from macspec.bench.session import Plan, measure
        from macspec.progress import load_progress
        from macspec.runtime import Runtime

        with load_progress() as loading:
            engine = Runtime.load(**engine_options(options), progress=loading)
        arms, skipped = choose_arms(engine, options)
        plan = Plan(
            prompts=prompts,
            settings=settings,
            suites=suites,
            repeats=options.repeats or (1 if options.quick else REPEATS),
            end_at=begun + QUICK_S if options.quick else None,
            fit_tokens=options.tokens is None,
            cool_down_s=0.0 if options.quick else options.cool_down,
            joules=power.energy.joules if power is not None else lambda: None,
        )
        progress = Progress()
        try:
            result, interrupted = measure(engine, arms, plan, skipped=skipped, progress=progress)
        finally:
            progress.clear()
    kept = export.keep(result)
    return _deliver(result, interrupted, engine, prompts, options, kept)


def _deliver(
    result: Report,
    interrupted: bool,
    engine: Runtime,
    prompts: list[Prompt],
    options: argparse.Namespace,
    kept: Path | None,
) -> int:
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
    if options.trace and not interrupted:
        from macspec.bench.tracing import record

        header = {"target": engine.target.name, "drafter": result.pair.get("drafter"), "machine": result.machine.title}
        try:
            record(engine, prompts, result.settings, Path(options.trace), header)
        except MacspecError as error:
            failures.append(error)
    for failure in failures:
        print(f"macspec: {failure.message}", file=sys.stderr)
    if interrupted:
        return 130
    silent = [arm for arm in result.arms if not any(s.arm == arm and s.error is None for s in result.samples)]
    return 1 if failures or silent else 0
