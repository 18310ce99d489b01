"""Proposals that cost no draft, in the default rule: taken while parked, and no evidence about drafts that cost."""

from __future__ import annotations

from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import LOOKUP, RoundOutcome, RoundState, SlotConfidence
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.parking import Mode
from macspec.scheduler.rate import RatePolicy
from macspec.scheduler.survival import Prior, SurvivalModel

LADDER = Ladder.single([30.0 + row for row in range(8)], 25.0)
SURE, WEAK = (tuple([SlotConfidence(p, 1.0, 1.0)] * 7) for p in (0.95, 0.02))


def parked() -> RatePolicy:
    """A rule that has given up drafting: nothing a dear drafter proposed was right."""
    policy = RatePolicy(CostModel(LADDER), lambda source: SurvivalModel(Prior(1.0, 0.0) if source == LOOKUP else None))
    context = 0
    while policy.draft_limit(RoundState(7, context)):
        policy.choose(RoundState(7, context, confidence=WEAK))
        policy.observe(RoundOutcome(1, 0, 1, 7, context, 25.0, 31.0, 0.0, confidence=WEAK))
        context += 1
        assert context < 200, "this drafter should be parked"
    return policy


def test_a_parked_rule_takes_what_is_free_and_likely() -> None:
    policy = parked()
    assert policy.draft_limit(RoundState(7, 500, free=True)) == 7
    assert policy.draft_limit(RoundState(2, 500, free=True)) == 2
    assert policy.choose(RoundState(7, 500, confidence=SURE, source=LOOKUP)).depth == 7
    assert policy.choose(RoundState(7, 500, confidence=WEAK, source=LOOKUP)).depth == 0


def test_free_rounds_neither_unpark_nor_park() -> None:
    policy = parked()
    for number in range(60):
        policy.observe(RoundOutcome(7, 7, 8, 7, 500 + number, 0.1, 37.0, 0.0, confidence=SURE, source=LOOKUP))
        assert policy.parking.mode is Mode.PARKED
    policy = RatePolicy(CostModel(LADDER))
    for number in range(60):
        policy.draft_limit(RoundState(7, number))
        policy.observe(RoundOutcome(7, 0, 1, 7, number, 0.1, 37.0, 0.0, confidence=SURE, source=LOOKUP))
        assert policy.parking.mode is Mode.DRAFT


def test_free_drafts_say_nothing_of_what_a_draft_costs() -> None:
    cost = CostModel(LADDER)
    for number in range(60):
        cost.observe(RoundOutcome(7, 7, 8, 7, number, 0.1, 37.0, 0.0, confidence=SURE, source=LOOKUP))
    assert cost.draft_ms(0) == LADDER.draft_ms(0)
