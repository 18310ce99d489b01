from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic_engines import SyntheticArm, World, some_prompts

from macspec.bench import analysis, runner, stats
from macspec.bench.samples import Arm, Prompt, Sample, Settings
from macspec.errors import MacspecError

SETTINGS = Settings(max_tokens=64)


def measure(
    seed: int,
    ratio: float,
    *,
    noise: float = 0.05,
    outliers: float = 0.0,
    slowness: object = None,
    prompts: int = 24,
    repeats: int = 2,
) -> stats.Estimate:
    """The ratio of two synthetic engines as the report computes it over all prompts."""
    world = World()
    if callable(slowness):
        world.slowness = slowness
    rng = np.random.default_rng(seed)
    arms: list[Arm] = [
        SyntheticArm("plain", 40.0, world, rng, noise=noise, outliers=outliers, keep_rounds=0),
        SyntheticArm("depth 4", 40.0 * ratio, world, rng, noise=noise, outliers=outliers, depth=4, keep_rounds=0),
    ]
    # Prompts differ in speed, in the same way for both arms.
    for prompt in some_prompts(prompts):
        factor = float(np.exp(0.3 * rng.standard_normal()))
        for arm in arms:
            assert isinstance(arm, SyntheticArm)
            arm.factors[prompt.id] = factor
    outcome = runner.run(
        arms, some_prompts(prompts), SETTINGS, repeats=repeats, conditions=runner.Conditions(clock=world.clock)
    )
    plain, deep = (analysis.rates_by_prompt(outcome.samples, name) for name in ("plain", "depth 4"))
    return stats.paired_ratio([plain[p] for p in plain], [deep[p] for p in plain])


def throttle(at: float) -> float:
    """Full speed for 40 s, then heavy throttling that comes and goes."""
    return 1.0 if at < 40 else 1.5 + 0.3 * np.sin(at / 11)


@pytest.mark.parametrize(
    ("noise", "outliers", "slowness", "prompts"),
    [
        (0.05, 0.0, None, 24),
        (0.15, 0.0, None, 8),
        (0.05, 0.04, None, 24),
        (0.05, 0.0, lambda at: 1 + at / 300, 24),
        (0.05, 0.02, throttle, 24),
    ],
    ids=["noise", "noisy and few", "outliers", "drift", "throttling"],
)
def test_true_ratio_is_in_the_interval(noise: float, outliers: float, slowness: object, prompts: int) -> None:
    inside = 0
    for seed in range(100):
        true = float(np.random.default_rng(seed + 500).uniform(0.7, 3.0))
        ratio = measure(seed, true, noise=noise, outliers=outliers, slowness=slowness, prompts=prompts)
        assert ratio.interval is not None
        inside += ratio.interval[0] <= true <= ratio.interval[1]
    assert inside >= 95


@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_drift_of_thirty_percent_biases_less_than_one(repeats: int, direction: float) -> None:
    length = sum(64 / 40 + 64 / 80 for _ in range(24)) * repeats

    def drift(at: float) -> float:
        done = min(at / length, 1.0)
        return 1 + 0.3 * (done if direction > 0 else 1 - done)

    assert measure(1, 2.0, noise=0.0, slowness=drift, repeats=repeats).value == pytest.approx(2.0, rel=0.01)


def test_a_straight_order_would_be_biased() -> None:
    """The drift above is large enough to matter: all of A and then all of B gets it wrong by far more."""
    world = World(slowness=lambda at: 1 + 0.3 * at / 60)
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    for name, speed in (("plain", 40.0), ("depth 4", 80.0)):
        arm = SyntheticArm(name, speed, world, rng)
        samples += [arm.run(prompt, SETTINGS) for prompt in some_prompts(24)]
    row = next(r for r in analysis.analyse(samples, some_prompts(24), ["plain", "depth 4"]).rows if r.arm == "depth 4")
    assert row.ratio_to_plain is not None and abs(row.ratio_to_plain / 2.0 - 1) > 0.05


def test_order_is_mirrored() -> None:
    order = [[turn.arm for turn in plan] for plan in runner.turns(prompts=2, arms=3, repeats=2)]
    assert order == [[0, 1, 2], [2, 1, 0], [2, 1, 0], [0, 1, 2]]
    assert [[t.arm for t in plan] for plan in runner.turns(2, 2, 1)] == [[0, 1], [1, 0]]


def test_categories_take_turns() -> None:
    prompts = [Prompt(f"{c}{i}", c, "x") for c in "abc" for i in range(3)]
    assert [p.id for p in runner.interleave_categories(prompts, 2)] == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_deadline_ends_on_a_whole_turn() -> None:
    world = World()
    arms: list[Arm] = [SyntheticArm(n, 40.0, world, np.random.default_rng(0)) for n in ("plain", "x")]
    outcome = runner.run(
        arms, some_prompts(20), SETTINGS, repeats=2, deadline_s=20, conditions=runner.Conditions(clock=world.clock)
    )
    assert not outcome.complete and not outcome.interrupted
    assert 0 < len(outcome.samples) < 80 and len(outcome.samples) % 2 == 0
    assert outcome.elapsed_s <= 20
    assert [n.kind for n in outcome.notices] == ["cut_short"]


def test_interrupt_keeps_what_was_measured() -> None:
    world = World()

    class Interrupting(SyntheticArm):
        calls = 0

        def run(self, prompt: Prompt, settings: Settings) -> Sample:
            self.calls += 1
            if self.calls == 6:
                raise KeyboardInterrupt
            return super().run(prompt, settings)

    arms: list[Arm] = [
        SyntheticArm("plain", 40.0, world, np.random.default_rng(0)),
        Interrupting("x", 40.0, world, np.random.default_rng(0)),
    ]
    outcome = runner.run(arms, some_prompts(20), SETTINGS, conditions=runner.Conditions(clock=world.clock))
    assert outcome.interrupted and not outcome.complete
    assert len(outcome.samples) == 9
    assert "Interrupted after 9 of 80" in outcome.notices[0].message


def test_failing_arm_is_left_out_after_three() -> None:
    world = World()

    class Failing(SyntheticArm):
        calls = 0

        def run(self, prompt: Prompt, settings: Settings) -> Sample:
            self.calls += 1
            raise MacspecError("The server does not answer.")

    failing = Failing("url", 1.0, world, np.random.default_rng(0))
    arms: list[Arm] = [SyntheticArm("plain", 40.0, world, np.random.default_rng(0)), failing]
    outcome = runner.run(arms, some_prompts(8), SETTINGS, conditions=runner.Conditions(clock=world.clock))
    # Warming up counts.
    assert failing.calls == runner.MAX_FAILURES
    assert sum(s.arm == "plain" for s in outcome.samples) == 16
    assert "does not answer" in outcome.notices[0].message


def test_waits_for_the_machine_to_cool_and_only_so_long() -> None:
    world, slept = World(), []
    levels = iter([0] + [2] * 3 + [0] * 500)

    def sleep(seconds: float) -> None:
        slept.append(seconds)

    arms: list[Arm] = [SyntheticArm("plain", 40.0, world, np.random.default_rng(0))]
    conditions = runner.Conditions(
        clock=world.clock, sleep=sleep, thermal=lambda: next(levels), cool_down_s=60, canary=lambda: 1.0
    )
    outcome = runner.run(arms, some_prompts(4), SETTINGS, conditions=conditions)
    assert len(slept) == 3
    assert len(outcome.canary) == 1 + 8
    hot, slept[:] = iter([0] + [3] * 1000), []
    runner.run(
        arms,
        some_prompts(1),
        SETTINGS,
        repeats=1,
        conditions=dataclasses.replace(conditions, thermal=lambda: next(hot)),
    )
    assert len(slept) == 12


def test_energy_of_every_answer() -> None:
    world = World()
    arms: list[Arm] = [SyntheticArm(n, 40.0, world, np.random.default_rng(0)) for n in ("plain", "x")]
    conditions = runner.Conditions(clock=world.clock, joules=lambda: 8.0 * world.now)
    outcome = runner.run(arms, some_prompts(3), SETTINGS, conditions=conditions)
    assert [s.joules for s in outcome.samples] == pytest.approx([8.0 * s.end_s for s in outcome.samples])
    (row, *_) = analysis.analyse(outcome.samples, some_prompts(3), ["plain", "x"]).rows
    assert row.tok_per_joule == pytest.approx(64 / (8.0 * outcome.samples[0].end_s))


def test_warming_up_does_not_eat_the_run() -> None:
    world = World()
    arms: list[Arm] = [SyntheticArm(f"arm {i}", 1.0, world, np.random.default_rng(0)) for i in range(9)]
    samples = runner.warm_up(arms, some_prompts(1)[0], SETTINGS, tokens=9, limit_s=12.0, clock=world.clock)
    assert len(samples) == 2
    assert len(runner.warm_up(arms, some_prompts(1)[0], SETTINGS, tokens=9, clock=world.clock)) == 9
