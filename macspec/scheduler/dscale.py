"""DScale's rule: a trained network predicts survival, and the sum of it is the length to verify."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from macspec.errors import ModelLoadError
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LengthPredictor:
    """Weights of a trained predictor: ``w1 [units, inputs]``, ``b1``, ``w2 [slots, units]``, ``b2``."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats
    #: Held-out R² of the predicted against the true accepted count.
    r2: float = 0.0

    @property
    def inputs(self) -> int:
        """Values it reads per round."""
        return int(self.w1.shape[1])

    @property
    def slots(self) -> int:
        """Draft tokens it predicts for."""
        return int(self.w2.shape[0])

    @classmethod
    def load(cls, path: Path) -> LengthPredictor:
        """Read the file ``macspec train predictor`` writes.

        Raises:
            ModelLoadError: it is missing or damaged; the message says how to train one.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                w1, b1, w2, b2 = (stored[name].astype(np.float32) for name in ("w1", "b1", "w2", "b2"))
                r2 = float(stored["r2"])
        except FileNotFoundError as error:
            raise ModelLoadError(
                f"This pair has no length predictor, which the policy dscale needs ({path} is not there). Train one "
                "with macspec train responses --model MODEL and then macspec train predictor --model MODEL "
                f"--drafter {path.parent}, or use another policy."
            ) from error
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ModelLoadError(f"The length predictor {path} is damaged ({error}); train it again.") from error
        fits = w1.ndim == 2 and w2.ndim == 2 and b1.shape == w1.shape[:1] == w2.shape[1:] and b2.shape == w2.shape[:1]
        if not fits or not all(np.isfinite(part).all() for part in (w1, b1, w2, b2)):
            raise ModelLoadError(f"The length predictor {path} is damaged (its weights do not fit together).")
        return cls(w1, b1, w2, b2, r2)

    def survival(self, features: npt.ArrayLike) -> list[float]:
        """Chance of each prefix to be accepted, non-increasing by the cumulative minimum of the published network."""
        hidden = np.maximum(self.w1 @ np.asarray(features, np.float32) + self.b1, 0.0)
        logits = self.w2 @ hidden + self.b2
        chances: list[float] = np.minimum.accumulate(1.0 / (1.0 + np.exp(-logits))).tolist()
        return chances


class DScalePolicy:
    """DScale (arXiv 2609.37532) for one sequence.

    Its network predicts prefix survival ``q_j`` straight from logits and hidden states. Its dynamic verify length
    starts from ``k = clip(floor(Σ q + 1/2), 1, W)`` slots, the anchor's included, and then shares a fixed budget of
    half of all slots among the live sequences; with a single one that budget would make every depth the same, so only
    the start is used here. No cost curve and no calibration enter, as published.
    """

    name = "dscale"
    needs_confidence = True
    needs_features = True

    def __init__(self, predictor: LengthPredictor) -> None:
        self.predictor = predictor

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth

    def choose(self, state: RoundState) -> Decision:
        limit = min(state.max_depth, self.predictor.slots)
        if limit <= 0:
            return Decision(0, "dscale: nothing to verify")
        if len(state.features) != self.predictor.inputs:
            # A block without features, such as a prompt lookup's, is not the predictor's to judge.
            return Decision(limit, "dscale: no features, full block")
        survival = self.predictor.survival(state.features)[:limit]
        slots = min(max(math.floor(sum(survival) + 0.5), 1), limit + 1)
        return Decision(slots - 1, "dscale: predicted length", 1.0 + sum(survival[: slots - 1]))

    def observe(self, outcome: RoundOutcome) -> None:
        """The network is trained beforehand."""
