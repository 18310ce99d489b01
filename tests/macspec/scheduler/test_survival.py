import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from macspec.scheduler.interface import RoundOutcome, SlotConfidence
from macspec.scheduler.published import calibration_error
from macspec.scheduler.survival import CELLS, Prior, SurvivalError, SurvivalModel
from macspec.scheduler.synthetic import CODE, HARD, PROSE, synthetic_trace


def outcome(probabilities: list[float], depth: int, accepted: int, temperature: float = 0.0) -> RoundOutcome:
    confidence = tuple(SlotConfidence(p, 1.0, 1.0) for p in probabilities)
    return RoundOutcome(depth, accepted, accepted + 1, len(confidence), 0, 1.0, 1.0, 0.0, temperature, confidence)


def slots(*probabilities: float) -> list[SlotConfidence]:
    return [SlotConfidence(p, 1.0, 1.0) for p in probabilities]


def test_survival_is_the_product_of_conditionals() -> None:
    model = SurvivalModel()
    seen = slots(0.9, 0.7, 0.99)
    assert model.survival(seen, 0.0) == pytest.approx(np.cumprod(model.conditionals(seen, 0.0)).tolist())


def test_a_fresh_model_orders_by_confidence() -> None:
    chances = SurvivalModel().conditionals(slots(*([0.1, 0.3, 0.5, 0.8, 0.95, 0.999])), 0.0)
    assert chances == sorted(chances)


def test_censored_slots_count_nothing() -> None:
    cut, whole = SurvivalModel(), SurvivalModel()
    cut.observe(outcome([0.9, 0.8, 0.7, 0.6], depth=2, accepted=2))
    whole.observe(outcome([0.9, 0.8], depth=2, accepted=2))
    assert cut.to_json()["cells"] == whole.to_json()["cells"]


def test_slots_behind_a_rejection_count_nothing() -> None:
    model = SurvivalModel()
    model.observe(outcome([0.9, 0.8, 0.7, 0.6], depth=4, accepted=1))
    counted = sum(trials for _, trials in model.to_json()["cells"].values())
    assert counted == 2


def test_nothing_to_learn_from_plain_rounds() -> None:
    model = SurvivalModel()
    model.observe(outcome([], depth=0, accepted=0))
    model.observe(outcome([0.9], depth=0, accepted=0))
    assert model.rounds == 0 and not model.to_json()["cells"]


def test_temperatures_are_learned_apart() -> None:
    model = SurvivalModel()
    for _ in range(200):
        model.observe(outcome([0.9], depth=1, accepted=1, temperature=0.0))
        model.observe(outcome([0.9], depth=1, accepted=0, temperature=1.0))
    model.bias = 0.0
    assert model.conditionals(slots(0.9), 0.0)[0] > 0.9
    assert model.conditionals(slots(0.9), 1.0)[0] < 0.2


@pytest.mark.parametrize("overconfidence", [0.6, 1.0, 2.5])
@pytest.mark.parametrize("seed", [1, 2])
def test_calibrated_within_five_percent_after_500_rounds(overconfidence: float, seed: int) -> None:
    """Expected calibration error of survival on rounds it has not seen, while it goes on learning."""
    trace = synthetic_trace(2500, slots=7, regimes=(CODE, PROSE, HARD), overconfidence=overconfidence, seed=seed)
    model = SurvivalModel()
    predicted, happened = [], []
    for number, item in enumerate(trace.rounds):
        if number >= 500:
            predicted += model.survival(item.confidence, 0.0)
            happened += [float(item.accepted > slot) for slot in range(7)]
        model.observe(RoundOutcome(7, item.accepted, item.accepted + 1, 7, 0, 1, 1, 0, 0.0, item.confidence))
    assert calibration_error(np.array(predicted), np.array(happened)) <= 0.05


def test_the_bias_follows_a_regime_and_returns() -> None:
    model = SurvivalModel()
    draw = random.Random(0)
    for _ in range(300):
        model.observe(outcome([0.8], depth=1, accepted=int(draw.random() < 0.7)))
    usual = model.conditionals(slots(0.8), 0.0)[0]
    for _ in range(12):
        model.observe(outcome([0.8], depth=1, accepted=0))
    assert model.conditionals(slots(0.8), 0.0)[0] < 0.65 * usual
    for _ in range(12):
        model.observe(outcome([0.8], depth=1, accepted=1))
    assert model.conditionals(slots(0.8), 0.0)[0] > 0.85 * usual


@given(st.lists(st.tuples(st.floats(), st.integers(0, 1), st.floats(0, 2)), max_size=120))
def test_chances_are_chances_whatever_the_drafter_says(rounds: list[tuple[float, int, float]]) -> None:
    model = SurvivalModel()
    for probability, accepted, temperature in rounds:
        model.observe(outcome([probability] * 9, depth=1, accepted=accepted, temperature=temperature))
        chances = model.conditionals(slots(probability, 0.0, 1.0), temperature)
        assert all(0.0 < chance < 1.0 for chance in chances)


def test_json_round_trip_keeps_what_was_learned() -> None:
    model, other = SurvivalModel(), SurvivalModel()
    draw = random.Random(1)
    for _ in range(400):
        model.observe(outcome([0.9, 0.6, 0.3], depth=3, accepted=draw.choice([0, 1, 1, 2, 3])))
    other.load_json(json.loads(json.dumps(model.to_json())))
    model.bias = 0.0
    seen = slots(0.9, 0.6, 0.3)
    assert other.conditionals(seen, 0.0) == pytest.approx(model.conditionals(seen, 0.0), abs=0.03)


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"schema": 0},
        {"schema": 1},
        {"schema": 1, "prior": {"slope": 0.5, "offset": 0.0}, "rounds": 1, "cells": {"0": [3, 2]}},
        {"schema": 1, "prior": {"slope": 0.5, "offset": 0.0}, "rounds": 1, "cells": {str(CELLS): [1, 2]}},
        {"schema": 1, "prior": {"slope": 0.5, "offset": 0.0}, "rounds": 1, "cells": {"1": [float("nan"), 2]}},
        {"schema": 1, "prior": {"slope": -1, "offset": 0.0}, "rounds": 1, "cells": {}},
        {"schema": 1, "prior": {"slope": 0.5, "offset": 0.0}, "rounds": 1, "cells": [1]},
    ],
)
def test_damaged_tables_are_refused_and_change_nothing(values: object) -> None:
    model = SurvivalModel()
    before = model.to_json()
    with pytest.raises(SurvivalError, match="anew|prior"):
        model.load_json(values)
    assert model.to_json() == before


def test_priors_are_checked() -> None:
    for slope, offset in ((0.0, 0.0), (float("nan"), 0.0), (1.0, 9.0)):
        with pytest.raises(SurvivalError):
            Prior(slope, offset)
