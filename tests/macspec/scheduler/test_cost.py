import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macspec.scheduler.cost import ROW_BOUND, SHARED_BOUND, CostModel
from macspec.scheduler.interface import RoundOutcome
from macspec.scheduler.ladder import Ladder

LADDER = Ladder.single([10.0, 11.0, 14.0, 20.0], 2.0, overhead=0.5)


def outcome(depth: int, verify: float, *, draft: float = 2.0, other: float = 0.5, context: int = 0) -> RoundOutcome:
    return RoundOutcome(depth, 0, 1, 3 if draft else 0, context, draft, verify, other)


def test_round_is_the_sum_of_its_parts() -> None:
    cost = CostModel(LADDER)
    assert cost.round_ms(2, 0) == pytest.approx(14.0 + 2.0 + 0.5)
    assert cost.round_ms(0, 0, drafted=False) == cost.plain_ms(0) == pytest.approx(10.0)
    assert cost.max_depth == 3


def test_true_times_are_learned_within_tens_of_rounds() -> None:
    cost = CostModel(LADDER)
    for _ in range(60):
        cost.observe(outcome(1, 16.5))
    assert cost.verify_curve(0)[1] == pytest.approx(16.5, rel=0.03)
    # Row counts that were not seen move with the machine, not with that one row count.
    assert 10.0 < cost.verify_curve(0)[0] < 16.0


def test_a_warm_machine_lifts_the_whole_curve() -> None:
    cost = CostModel(LADDER)
    for number in range(200):
        depth = number % 4
        cost.observe(outcome(depth, 1.4 * LADDER.verify[0][depth]))
    assert cost.verify_curve(0) == pytest.approx([1.4 * ms for ms in LADDER.verify[0]], rel=0.06)
    assert cost.drift > 1.2


def test_one_stall_hardly_moves_it() -> None:
    cost = CostModel(LADDER)
    cost.observe(outcome(0, 10_000.0))
    assert cost.verify_curve(0)[0] < 10.0 * 1.03


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(), st.floats(), st.floats()), max_size=200))
def test_corrections_stay_within_their_bounds(rounds: list[tuple[int, float, float, float]]) -> None:
    cost = CostModel(LADDER)
    for depth, verify, draft, other in rounds:
        cost.observe(outcome(depth, verify, draft=draft, other=other))
    for ms, base in zip(cost.verify_curve(0), LADDER.verify[0], strict=True):
        assert base / (SHARED_BOUND * ROW_BOUND) * 0.999 <= ms <= base * SHARED_BOUND * ROW_BOUND * 1.001
    assert 2.0 / SHARED_BOUND * 0.999 <= cost.draft_ms(0) <= 2.0 * SHARED_BOUND * 1.001
    assert math.isfinite(cost.overhead_ms) and cost.overhead_ms >= 0


def test_a_profile_that_no_longer_fits_is_noticed() -> None:
    cost = CostModel(LADDER)
    assert not cost.suspect
    for _ in range(500):
        cost.observe(outcome(0, 1000.0))
    assert cost.suspect


def test_replay_is_paid_only_when_something_is_undone() -> None:
    cost = CostModel(Ladder((0,), ((10.0, 11.0, 12.0),), (1.0,), replay=(8.0, 9.0)))
    assert cost.replay_ms(2, 2) == 0.0
    assert cost.replay_ms(0, 2) == pytest.approx(8.0)
    assert cost.replay_ms(1, 2) == pytest.approx(9.0)
    assert CostModel(LADDER).replay_ms(0, 3) == 0.0


def test_exact_ladders_can_be_left_alone() -> None:
    cost = CostModel(LADDER, adapt=False)
    cost.observe(outcome(0, 30.0))
    assert cost.verify_curve(0) == list(LADDER.verify[0])
