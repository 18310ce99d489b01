"""Reports of synthetic engines, made the way the command makes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from synthetic_engines import SyntheticArm, World, some_prompts

from macspec.bench import analysis, runner
from macspec.bench.analysis import ALL, Row
from macspec.bench.document import Report, SuiteInfo, measured_ladder, with_id
from macspec.bench.samples import Arm, Settings
from macspec.machine import CoreGroup, Machine

SETTINGS = Settings(max_tokens=64)


def _measure(
    speeds: Mapping[str, float],
    seed: int,
    noise: float,
    prompts: int,
    answers: Mapping[str, dict[str, tuple[int, ...]]],
    keep_rounds: int = 1000,
) -> runner.Outcome:
    world, rng = World(), np.random.default_rng(seed)
    arms: list[Arm] = []
    for name, speed in speeds.items():
        depth = int(name.split()[1]) if name.startswith("depth ") else 0
        own = answers.get(name, {})
        arms.append(
            SyntheticArm(name, speed, world, rng, noise=noise, depth=depth, answers=own, keep_rounds=keep_rounds)
        )
    return runner.run(arms, some_prompts(prompts), SETTINGS, conditions=runner.Conditions(clock=world.clock))


def bare_report(speeds: Mapping[str, float], *, seed: int, noise: float = 0.05, prompts: int = 16) -> Report:
    """Only what a comparison reads: samples, and rows without figures. Cheap enough to make hundreds."""
    rows = tuple(Row(arm, ALL, None) for arm in speeds)
    samples = _measure(speeds, seed, noise, prompts, {}, keep_rounds=0).samples
    return Report(suites=(SuiteInfo("made-up", "a" * 64, prompts),), results=rows, samples=tuple(samples))


def make_report(
    speeds: Mapping[str, float],
    *,
    seed: int = 0,
    noise: float = 0.05,
    prompts: int = 16,
    answers: Mapping[str, dict[str, tuple[int, ...]]] | None = None,
    suite: str = "a" * 64,
) -> Report:
    """A run of synthetic arms; arms called ``depth N`` draft N tokens."""
    outcome = _measure(speeds, seed, noise, prompts, answers or {})
    asked = some_prompts(prompts)
    found = analysis.analyse(outcome.samples, asked, list(speeds))
    return with_id(
        Report(
            started="2026-01-01T00:00:00+00:00",
            elapsed_s=outcome.elapsed_s,
            repeats=2,
            settings=SETTINGS,
            machine=Machine(
                system="Darwin", os_version="27.0", chip="Apple M6", cores=(CoreGroup("Super", 4),), memory_bytes=2**35
            ),
            pair={"model": "tiny", "revision": "abc", "drafter": "dflash", "dtype": "float32", "max_depth": 7},
            versions={"macspec": "0.1.0", "mlx": "0.32.4", "mlx-lm": "0.32.2"},
            suites=(SuiteInfo("made-up", suite, prompts),),
            results=found.rows,
            differences=found.differences,
            warnings=found.notices,
            excluded=found.excluded,
            ladder=measured_ladder(outcome.samples),
            samples=tuple(outcome.samples),
        )
    )
