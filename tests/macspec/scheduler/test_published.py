import math

import pytest

from macspec.scheduler.cost import CostModel
from macspec.scheduler.ewma import PARK_AFTER, PRIOR, EwmaPolicy
from macspec.scheduler.interface import RoundOutcome, RoundState, SlotConfidence
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.published import AdaEDLPolicy, DCutPolicy, DSparkPolicy, SequentialTemperature, SpecDecPlusPolicy

SIXTEEN = Ladder.single([10.0 + row for row in range(16)], 2.0)


def state(*probabilities: float, entropy: float = 0.5) -> RoundState:
    return RoundState(len(probabilities), 0, 0.0, tuple(SlotConfidence(p, 1.0, entropy) for p in probabilities))


def outcome(depth: int, accepted: int, confidence: tuple[SlotConfidence, ...] = ()) -> RoundOutcome:
    return RoundOutcome(depth, accepted, accepted + 1, max(depth, 1), 0, 2.0, 10.0 + depth, 0.0, 0.0, confidence)


class TestDCut:
    def test_only_four_budgets(self) -> None:
        policy = DCutPolicy(CostModel(SIXTEEN))
        depths = {policy.choose(state(*[p / 100] * 15)).depth for p in range(1, 100)}
        assert depths <= {3, 7, 11, 15}
        assert len(depths) >= 3

    def test_score_is_survival_over_cost_without_the_bonus(self) -> None:
        policy = DCutPolicy(CostModel(SIXTEEN))
        for p in (0.3, 0.6, 0.9, 0.97):
            alive = [p**k for k in range(1, 16)]
            best = max((3, 7, 11, 15), key=lambda keep: sum(alive[:keep]) / (2.0 + 10.0 + keep))
            assert policy.choose(state(*[p] * 15)).depth == best

    def test_small_cuts_can_be_skipped(self) -> None:
        flat = Ladder.single([10.0 + 0.05 * row for row in range(16)], 2.0)
        unsure = state(*[0.2] * 15)
        assert DCutPolicy(CostModel(flat), flat_skip=True).choose(unsure).depth == 15
        assert DCutPolicy(CostModel(flat)).choose(unsure).depth == 3


class TestDSpark:
    def test_counts_the_bonus_and_stops_at_the_first_that_does_not_pay(self) -> None:
        # A step at the third row: a global search would go past it, Algorithm 1 does not.
        jagged = Ladder.single([10.0, 10.5, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0])
        policy = DSparkPolicy(CostModel(jagged))
        assert policy.choose(state(*[0.95] * 7)).depth == 1

    def test_depth_is_the_best_ratio_on_a_smooth_curve(self) -> None:
        policy = DSparkPolicy(CostModel(SIXTEEN))
        for p in (0.1, 0.5, 0.8, 0.95):
            ratios = [sum(p**k for k in range(depth + 1)) / (12.0 + depth) for depth in range(16)]
            assert policy.choose(state(*[p] * 15)).depth == ratios.index(max(ratios))

    def test_temperatures_cool_an_overconfident_drafter(self) -> None:
        scaling = SequentialTemperature()
        confidence = (SlotConfidence(0.97, 1.0, 0.1),) * 4
        for number in range(SequentialTemperature.EVERY):
            scaling.add(outcome(4, (4, 1, 0, 2)[number % 4], confidence))
        assert scaling.temperatures[0] > 1.5
        assert scaling.scale(0, 0.97) < 0.9
        assert scaling.scale(9, 0.97) == pytest.approx(0.97)


class TestSpecDecPlus:
    def test_stops_when_some_rejection_is_likelier_than_the_threshold(self) -> None:
        policy = SpecDecPlusPolicy(threshold=0.7)
        # 0.7^3 = 0.343 is kept, 0.7^4 = 0.24 is not.
        assert policy.choose(state(*[0.7] * 10)).depth == 3

    def test_shortest_draft(self) -> None:
        assert SpecDecPlusPolicy().choose(state(*[0.1] * 10)).depth == 2
        assert SpecDecPlusPolicy().choose(state(0.1)).depth == 1


class TestAdaEDL:
    def test_entropy_bound(self) -> None:
        policy = AdaEDLPolicy(start=0.5)
        # 1 - sqrt(0.2 * H) < 0.5 for H > 1.25.
        assert policy.choose(state(*[0.5] * 5, entropy=1.2)).depth == 5
        assert policy.choose(state(*[0.5] * 5, entropy=1.3)).depth == 1

    def test_threshold_follows_acceptance(self) -> None:
        policy = AdaEDLPolicy()
        start = policy.threshold
        for _ in range(50):
            policy.observe(outcome(4, 0))
        assert policy.threshold > start
        for _ in range(200):
            policy.observe(outcome(4, 4))
        assert policy.threshold < start + 0.05
        assert not math.isnan(policy.threshold)


class TestEwma:
    def test_acceptance_is_one_scalar_and_the_last_of_a_full_round_is_censored(self) -> None:
        policy = EwmaPolicy(CostModel(SIXTEEN))
        policy.observe(outcome(1, 1))
        assert policy.acceptance == pytest.approx(PRIOR + 0.02 * (1 - PRIOR))
        before = policy.acceptance
        policy.observe(outcome(2, 0))
        assert policy.acceptance == pytest.approx(before * 0.98)

    def test_parks_and_probes_every_eighth_round(self) -> None:
        policy = EwmaPolicy(CostModel(Ladder.single([10.0 * (row + 1) for row in range(8)], 2.0)))
        drafted = []
        for _ in range(PARK_AFTER + 100):
            drafts = policy.draft_limit(RoundState(7, 0)) > 0
            depth = policy.choose(RoundState(7, 0)).depth if drafts else 0
            policy.observe(RoundOutcome(depth, 0, 1, 7 * drafts, 0, 2.0 * drafts, 10.0 * (depth + 1), 0.0))
            drafted.append(drafts)
        assert drafted[-16:].count(True) == 2
