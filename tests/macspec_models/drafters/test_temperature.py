"""Sequential temperature scaling finds the temperatures that made the data."""

from __future__ import annotations

import numpy as np
import pytest

from macspec_models.drafters.temperature import calibration_error, fit_temperatures


def survivals(logits: np.ndarray, temperatures: tuple[float, ...]) -> np.ndarray:
    return np.cumprod(1 / (1 + np.exp(-logits / np.array(temperatures))), axis=1)


def test_fitting_recovers_temperatures_and_calibrates() -> None:
    random, true = np.random.default_rng(0), (2.0, 0.5, 1.0)
    logits = random.normal(1.0, 2.0, size=(20_000, 3))
    chances = 1 / (1 + np.exp(-logits / np.array(true)))
    accepted = np.cumprod(random.random(chances.shape) < chances, axis=1).sum(axis=1)
    found = fit_temperatures(logits, accepted)
    assert found == pytest.approx(true, rel=0.2)
    for slot in range(3):
        happened = accepted > slot
        before = calibration_error(survivals(logits, (1.0, 1.0, 1.0))[:, slot], happened)
        after = calibration_error(survivals(logits, found)[:, slot], happened)
        assert after < 0.015
        assert after < before / 2 or slot == 2


def test_calibration_error_by_hand() -> None:
    chances = np.array([0.1, 0.1, 0.9, 0.9])
    assert calibration_error(chances, np.array([False, False, True, True])) == pytest.approx(0.1)
    assert calibration_error(chances, np.array([True, True, False, False])) == pytest.approx(0.9)
    assert calibration_error(np.array([1.0]), np.array([True])) == 0


@pytest.mark.parametrize(("logits", "accepted"), [((0, 3), 0), ((3,), 3), ((4, 2), 3)])
def test_data_must_fit(logits: tuple[int, ...], accepted: int) -> None:
    with pytest.raises(ValueError, match="do not go together"):
        fit_temperatures(np.zeros(logits), np.zeros(accepted, np.int64))
