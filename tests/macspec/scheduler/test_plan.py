"""A plan says before the draft what the rule will choose once it knows it."""

import numpy as np
import pytest

from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import RoundOutcome, RoundState, SlotConfidence
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.plan import DepthPlan
from macspec.scheduler.rate import RatePolicy
from macspec.scheduler.simple import FixedPolicy, FullPolicy

SLOTS = 10


def ladder(kind: str) -> Ladder:
    rows = range(1, SLOTS + 2)
    verify = {
        "steps": [10.0 + 7.0 * ((r - 1) // 5) + 0.2 * r for r in rows],
        "steep": [4.0 + 3.0 * r for r in rows],
        "flat": [20.0 + 0.01 * r for r in rows],
    }[kind.removesuffix(" with replay")]
    replay = tuple(3.0 + 0.5 * k for k in range(SLOTS)) if kind.endswith("replay") else ()
    return Ladder(contexts=(64,), verify=(tuple(verify),), draft=(1.5,), replay=replay, name=kind)


@pytest.mark.parametrize("kind", ["steps", "steep", "flat", "steps with replay", "flat with replay"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_plan_of_the_rate_rule_is_what_it_chooses(kind, temperature):
    random = np.random.default_rng(1)
    policy = RatePolicy(CostModel(ladder(kind)))
    chosen = set()
    for _ in range(300):
        slots = int(random.integers(1, SLOTS + 1))
        level = random.uniform(-1, 4)
        probabilities = 1 / (1 + np.exp(-random.normal(level, 1.5, slots)))
        confidence = tuple(SlotConfidence(float(p), 1.0, 0.5) for p in probabilities)
        before = RoundState(max_depth=slots, context=64, temperature=temperature)
        plan = policy.plan(before)
        assert plan is not None and plan.slots == slots
        state = RoundState(max_depth=slots, context=64, temperature=temperature, confidence=confidence)
        decision = policy.choose(state)
        assert plan.depth([c.probability for c in confidence]) == decision.depth
        chosen.add(decision.depth)
        accepted = int(random.integers(0, decision.depth + 1))
        ms = policy.cost.round_ms(decision.depth, 64)
        policy.observe(
            RoundOutcome(decision.depth, accepted, accepted + 1, slots, 64, 1.5, ms, 0.2, temperature, confidence)
        )
    assert len(chosen) > 3


def test_rules_that_look_at_nothing_plan_their_number():
    state = RoundState(max_depth=5, context=9)
    assert FixedPolicy(3).plan(state).depth([0.0] * 5) == 3
    assert FixedPolicy(9).plan(state).depth([0.0] * 5) == 5
    assert FullPolicy().plan(state).depth([0.0] * 5) == 5
    assert DepthPlan.fixed(0).depth([]) == 0


def test_nothing_to_plan_without_room():
    assert RatePolicy(CostModel(ladder("steps"))).plan(RoundState(max_depth=0, context=9)) is None
