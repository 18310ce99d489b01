"""How well survival is calibrated on recorded rounds: predicted before each round, learned after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from macspec.scheduler.interface import RoundOutcome
from macspec.scheduler.published import calibration_error
from macspec.scheduler.survival import SurvivalModel
from macspec.scheduler.trace import Trace

#: Rounds learned from before predictions count.
WARM_UP = 500


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error of survival, and of the drafter's raw probabilities on the same rounds."""

    rounds: int
    learned_before: int
    error: float
    raw_error: float


def calibration(trace: Trace, *, warm_up: int = WARM_UP) -> Calibration:
    """Replay a trace at full depth.

    Args:
        warm_up: rounds to learn from first; at most half of the trace.
    """
    warm_up = min(warm_up, len(trace.rounds) // 2)
    model = SurvivalModel()
    predicted: list[float] = []
    raw: list[float] = []
    happened: list[float] = []
    for number, item in enumerate(trace.rounds):
        if number >= warm_up:
            predicted += model.survival(item.confidence, item.temperature)
            raw += np.cumprod([slot.probability for slot in item.confidence]).tolist()
            happened += [float(item.accepted > slot) for slot in range(len(item.confidence))]
        depth = len(item.confidence)
        model.observe(
            RoundOutcome(depth, item.accepted, item.accepted + 1, depth, 0, 0, 0, 0, item.temperature, item.confidence)
        )
    truth = np.array(happened)
    return Calibration(
        len(trace.rounds) - warm_up,
        warm_up,
        calibration_error(np.array(predicted), truth),
        calibration_error(np.array(raw), truth),
    )
