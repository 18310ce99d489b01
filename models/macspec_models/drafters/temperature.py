"""Sequential temperature scaling of a confidence head (DSpark, arXiv 2607.05147 section 3.4). No tensors here.

Slot by slot from the left, one temperature is chosen so that the product of the confidences so far is calibrated; the
earlier slots' temperatures stay. The result goes into ``dflash_config.confidence_temperatures`` of a checkpoint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Temperatures tried for every slot.
GRID = np.geomspace(0.25, 4.0, 65)
BINS = 15


def calibration_error(chances: NDArray[np.float64], happened: NDArray[np.bool_], bins: int = BINS) -> float:
    """Expected calibration error: mean gap between stated chance and frequency over equal-width bins, by weight."""
    place = np.minimum((chances * bins).astype(int), bins - 1)
    weight = np.bincount(place, minlength=bins)
    gap = np.bincount(place, chances - happened, minlength=bins)
    return float(np.abs(gap[weight > 0]).sum() / len(chances))


def fit_temperatures(logits: NDArray[np.float64], accepted: NDArray[np.int64]) -> tuple[float, ...]:
    """Temperatures ``[slots]`` for a head's logits.

    Args:
        logits: what the head gave per draft and slot ``[drafts, slots]``.
        accepted: how many draft tokens were right at full depth ``[drafts]``.

    Raises:
        ValueError: nothing to learn from, or shapes that do not go together.
    """
    if logits.ndim != 2 or not logits.size or accepted.shape != (len(logits),):
        raise ValueError(f"logits {logits.shape} and accepted {accepted.shape} do not go together")
    survival = np.ones(len(logits))
    found = []
    for slot in range(logits.shape[1]):
        happened = accepted > slot
        trials = [survival / (1 + np.exp(-logits[:, slot] / t)) for t in GRID]
        errors = [calibration_error(trial, happened) for trial in trials]
        best = int(np.argmin(errors))
        found.append(float(GRID[best]))
        survival = trials[best]
    return tuple(found)
