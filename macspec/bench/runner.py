"""Runs arms over prompts so that time, heat and order treat every arm alike.

Arms take turns on each prompt, in mirrored order from one turn to the next (A B B A), so a machine that slows down
steadily slows all of them alike. Whatever ends the run early, what was measured is returned.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from macspec.bench.notices import Notice, notice
from macspec.bench.samples import Arm, Prompt, Sample, Settings
from macspec.errors import MacspecError

#: An arm that fails this many times in a row is not asked again.
MAX_FAILURES = 3
WARM_UP_TOKENS = 12
FEWEST_TOKENS, MOST_TOKENS = 20, 96
COOL_STEP_S = 5.0

ProgressCallback = Callable[[int, int, str, Sample | None], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """One entry of the plan: which arm answers which prompt for the how manyeth time."""

    prompt: int
    repeat: int
    arm: int


@dataclass(slots=True)
class Outcome:
    """What a run gave. ``complete`` is False when it was interrupted or ran out of time."""

    samples: list[Sample] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    #: ``(seconds since start, milliseconds)`` of the fixed piece of work that reveals throttling.
    canary: list[tuple[float, float]] = field(default_factory=list)
    complete: bool = True
    interrupted: bool = False
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the runner may ask of the machine; everything can be replaced in a test."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    #: Thermal pressure level, 0 nominal; None where it cannot be read.
    thermal: Callable[[], int | None] = lambda: None
    #: Times a fixed piece of work in milliseconds.
    canary: Callable[[], float] | None = None
    #: Joules drawn so far; None where nobody measures them.
    joules: Callable[[], float | None] = lambda: None
    #: Longest wait for the thermal level to return to where it was at the start.
    cool_down_s: float = 0.0


def turns(prompts: int, arms: int, repeats: int) -> Iterator[list[Turn]]:
    """The plan, one list per prompt and repeat; the direction flips with each, so drift cancels in pairs."""
    for prompt in range(prompts):
        for repeat in range(repeats):
            order = range(arms) if (prompt + repeat) % 2 == 0 else range(arms - 1, -1, -1)
            yield [Turn(prompt, repeat, arm) for arm in order]


def interleave_categories(prompts: Sequence[Prompt], per_category: int | None = None) -> list[Prompt]:
    """Round-robin over categories, so that a run that is cut short has seen all of them."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    columns = [items[:per_category] for items in by_category.values()]
    longest = max((len(items) for items in columns), default=0)
    return [items[row] for row in range(longest) for items in columns if row < len(items)]


def run(
    arms: Sequence[Arm],
    prompts: Sequence[Prompt],
    settings: Settings,
    *,
    repeats: int = 2,
    deadline_s: float | None = None,
    conditions: Conditions | None = None,
    progress: ProgressCallback | None = None,
    warm: Sequence[Sample] | None = None,
) -> Outcome:
    """Warm up, then let every arm answer every prompt ``repeats`` times.

    Args:
        deadline_s: begin no further turn that would not end within this many seconds, warm-up included.
        progress: called with answers done, answers planned, the arm's name and its sample (None while warming up).
        warm: what `warm_up` gave when the arms are warm already.
    """
    world = conditions or Conditions()
    outcome = Outcome()
    begun = world.clock()
    total = len(prompts) * len(arms) * repeats
    failures = [0] * len(arms)
    cool_level = world.thermal()
    done = 0
    try:
        if prompts and warm is None:
            warm = warm_up(arms, prompts[0], settings, progress, total=total)
        # A server that hung while warming up will hardly do better later.
        for number, sample in enumerate(warm or ()):
            failures[number] = 1 if sample.error else 0
        _sing(outcome, world, begun)
        slowest_turn = 0.0
        for plan in turns(len(prompts), len(arms), repeats):
            turn_begun = world.clock()
            if deadline_s is not None and turn_begun - begun + slowest_turn > deadline_s:
                outcome.complete = False
                outcome.notices.append(
                    notice(
                        "cut_short",
                        f"The time limit of {deadline_s:.0f} s ended the run after {done} of {total} answers.",
                    )
                )
                break
            _cool_down(world, cool_level)
            for turn in plan:
                if failures[turn.arm] >= MAX_FAILURES:
                    continue
                before = world.joules()
                sample = _answer(arms[turn.arm], prompts[turn.prompt], settings)
                after = world.joules()
                sample = dataclasses.replace(
                    sample,
                    repeat=turn.repeat,
                    order=len(outcome.samples),
                    thermal_level=world.thermal(),
                    joules=None if before is None or after is None else after - before,
                )
                outcome.samples.append(sample)
                failures[turn.arm] = failures[turn.arm] + 1 if sample.error else 0
                if failures[turn.arm] == MAX_FAILURES:
                    message = f"{sample.arm} failed {MAX_FAILURES} times in a row and was left out: {sample.error}"
                    outcome.notices.append(notice("arm_failed", message, arm=sample.arm))
                done += 1
                if progress is not None:
                    progress(done, total, sample.arm, sample)
            _sing(outcome, world, begun)
            slowest_turn = max(slowest_turn, world.clock() - turn_begun)
    except KeyboardInterrupt:
        outcome.complete, outcome.interrupted = False, True
        outcome.notices.append(notice("cut_short", f"Interrupted after {done} of {total} answers."))
    outcome.elapsed_s = world.clock() - begun
    return outcome


def warm_up(
    arms: Sequence[Arm],
    prompt: Prompt,
    settings: Settings,
    progress: ProgressCallback | None = None,
    *,
    total: int = 0,
    tokens: int = WARM_UP_TOKENS,
    limit_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Sample]:
    """One short answer per arm that nobody counts: compiles kernels, wakes clocks, fills file caches.

    Begins no further answer after ``limit_s`` seconds: on a crowded machine warming up must not eat the whole run.
    """
    begun = clock()
    short = dataclasses.replace(settings, max_tokens=min(settings.max_tokens, tokens))
    samples = []
    for arm in arms:
        if progress is not None:
            progress(0, total, arm.name, None)
        samples.append(_answer(arm, prompt, short))
        if limit_s is not None and clock() - begun > limit_s:
            break
    return samples


def tokens_that_fit(samples: Sequence[Sample], seconds: float, turns: int, arms: int) -> int:
    """Tokens per answer so that about ``turns`` turns of ``arms`` answers fit, judged by warm-up samples."""
    seconds *= len(samples) / max(arms, 1)
    prefill = sum(s.first_commit_s for s in samples)
    per_token = sum((s.end_s - s.first_commit_s) / max(1, s.generation_tokens - s.first_round_tokens) for s in samples)
    if per_token <= 0:
        return MOST_TOKENS
    return int(max(FEWEST_TOKENS, min(MOST_TOKENS, (seconds / turns - prefill) / per_token)))


def _answer(arm: Arm, prompt: Prompt, settings: Settings) -> Sample:
    try:
        return arm.run(prompt, settings)
    except MacspecError as error:
        return Sample(arm=arm.name, prompt=prompt.id, category=prompt.category, error=error.message)


def _sing(outcome: Outcome, world: Conditions, begun: float) -> None:
    if world.canary is not None:
        outcome.canary.append((world.clock() - begun, world.canary()))


def _cool_down(world: Conditions, level: int | None) -> None:
    if level is None:
        return
    waited = 0.0
    while waited < world.cool_down_s and (world.thermal() or 0) > level:
        world.sleep(COOL_STEP_S)
        waited += COOL_STEP_S
