"""One measurement from beginning to end: warm up, run, look at what came out, and say under which conditions."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from macspec import machine
from macspec.bench import analysis, environment, runner
from macspec.bench.analysis import PLAIN
from macspec.bench.document import Report, SuiteInfo, measured_ladder, with_id
from macspec.bench.notices import Notice, notice
from macspec.bench.presets import Suite
from macspec.bench.quality import Difference
from macspec.bench.samples import Arm, Prompt, Sample, Settings

#: Tokens of the warm-up of a run against the clock, and the share of its time that warming up may take.
WARM_UP_TOKENS, WARM_UP_SHARE = 9, 0.25
#: Share of the time that answers are planned to take, judged by a short prompt; longer ones need the rest.
MEASURED_SHARE = 0.8
#: Seconds a run against the clock measures even when loading took all of its time.
LEAST_S = 12.0
#: Differences whose logit gap is worked out after the run.
MAX_GAPS = 20


class Described(Protocol):
    """What a report wants to know of an engine."""

    def info(self) -> dict[str, Any]:
        """What is loaded, as plain values."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and under which rules."""

    prompts: Sequence[Prompt]
    settings: Settings
    suites: Sequence[Suite] = ()
    repeats: int = 1
    #: When to end by `time.perf_counter`; None means when every arm has answered every prompt.
    end_at: float | None = None
    #: Choose the number of tokens so that every category is reached before ``end_at``.
    fit_tokens: bool = False
    #: Longest wait for a hot machine, seconds.
    cool_down_s: float = 0.0
    #: Joules drawn so far; None where nobody measures them.
    joules: Callable[[], float | None] = lambda: None


def measure(
    engine: Described,
    arms: list[Arm],
    plan: Plan,
    *,
    skipped: Sequence[Notice] = (),
    progress: runner.ProgressCallback | None = None,
) -> tuple[Report, bool]:
    """The report of a run, and whether it was interrupted; whatever was measured until then is in it.

    Args:
        skipped: notices about what was left out from the start.
        progress: see `runner.run`.
    """
    from macspec.bench.arms import Canary

    info, before = machine.describe(), machine.state()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    conditions = runner.Conditions(
        thermal=machine.thermal_level, canary=Canary(), joules=plan.joules, cool_down_s=plan.cool_down_s
    )
    settings, deadline, warm = plan.settings, None, None
    if plan.end_at is not None:
        limit = max(LEAST_S, plan.end_at - time.perf_counter())
        begun = time.perf_counter()
        warm = runner.warm_up(
            arms, plan.prompts[0], settings, progress, tokens=WARM_UP_TOKENS, limit_s=limit * WARM_UP_SHARE
        )
        deadline = limit - (time.perf_counter() - begun)
        if plan.fit_tokens:
            # An even number of turns, so that the mirrored order cancels drift.
            categories = len({p.category for p in plan.prompts})
            turns = categories + categories % 2
            fitting = runner.tokens_that_fit(warm, deadline * MEASURED_SHARE, turns, len(arms))
            settings = dataclasses.replace(settings, max_tokens=fitting)
    outcome = runner.run(
        arms,
        plan.prompts,
        settings,
        repeats=plan.repeats,
        deadline_s=deadline,
        conditions=conditions,
        progress=progress,
        warm=warm,
    )
    if plan.end_at is not None and not outcome.interrupted:
        _forgive_the_clock(outcome, plan.prompts)
    after = machine.state()
    found = analysis.analyse(
        outcome.samples, plan.prompts, [a.name for a in arms], compared=_comparable(outcome, settings)
    )
    left_out = {n.arm for n in outcome.notices if n.kind == "arm_failed"}
    report = Report(
        started=started,
        elapsed_s=outcome.elapsed_s,
        complete=outcome.complete,
        quick=plan.end_at is not None,
        repeats=plan.repeats,
        settings=settings,
        machine=info,
        state_before=before,
        state_after=after,
        pair={key: value for key, value in engine.info().items() if not isinstance(value, (list, tuple, dict))},
        versions=environment.versions(),
        suites=tuple(SuiteInfo(s.name, s.sha256, len(s.prompts)) for s in plan.suites),
        results=found.rows,
        differences=_with_gaps(found.differences, outcome, plan.prompts, arms),
        warnings=(
            *environment.notices(info, before, after, outcome.canary),
            *skipped,
            *outcome.notices,
            *(n for n in found.notices if n.kind != "arm_failed" or n.arm not in left_out),
        ),
        excluded=found.excluded,
        canary=tuple(outcome.canary),
        ladder=measured_ladder(outcome.samples),
        samples=tuple(outcome.samples),
    )
    return with_id(report), outcome.interrupted


def _forgive_the_clock(outcome: runner.Outcome, prompts: Sequence[Prompt]) -> None:
    """A run against the clock is meant to be ended by it; only categories that were not reached are worth a word."""
    reached = {s.category for s in outcome.samples}
    missed = [c for c in dict.fromkeys(p.category for p in prompts) if c not in reached]
    outcome.complete = not missed
    outcome.notices = [n for n in outcome.notices if n.kind != "cut_short"]
    if missed:
        outcome.notices.append(notice("cut_short", f"The time was over before {', '.join(missed)}."))


def _comparable(outcome: runner.Outcome, settings: Settings) -> Collection[str] | None:
    """Arms whose text must equal the plain one's: above temperature 0 only those that choose with our keyed noise."""
    return None if settings.temperature == 0 else {s.arm for s in outcome.samples if s.rounds}


def _with_gaps(
    differences: Sequence[Difference], outcome: runner.Outcome, prompts: Sequence[Prompt], arms: Sequence[Arm]
) -> tuple[Difference, ...]:
    """The differences with the target's logit gap at the first ones, as many as there is patience for."""
    plain: dict[str, Sample] = {s.prompt: s for s in outcome.samples if s.arm == PLAIN and s.error is None}
    by_id = {p.id: p for p in prompts}
    by_name = {a.name: a for a in arms}
    result = list(differences)
    try:
        for index, difference in enumerate(differences[:MAX_GAPS]):
            tokens = plain[difference.prompt].tokens if difference.prompt in plain else ()
            if difference.expected is None or difference.found is None or not tokens:
                continue
            arm, prefix = by_name[difference.arm], tokens[: difference.position]
            gap = arm.gap(by_id[difference.prompt], prefix, difference.expected, difference.found)
            result[index] = dataclasses.replace(difference, gap=gap)
    except KeyboardInterrupt:
        # The measurement is over and must not be lost for its last decimal.
        outcome.interrupted = True
    return tuple(result)
