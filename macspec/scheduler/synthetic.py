"""Invented rounds whose true chances are known, for bounds no recording can give and for regimes on demand.

The text moves between sticky regimes; a slot's true conditional acceptance is the regime's, less per slot, plus noise
of the round and of the slot. The drafter's confidence is that chance on a logit scale, made overconfident by a factor
and blurred. Nothing here was measured on a model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from macspec.scheduler.interface import SlotConfidence
from macspec.scheduler.trace import Trace, TraceRound


@dataclass(frozen=True, slots=True)
class Regime:
    """A kind of text: acceptance of the first slot and what each further slot takes off its logit."""

    name: str
    acceptance: float
    decay: float


COPY = Regime("copy", 0.95, 0.03)
CODE = Regime("code", 0.85, 0.06)
PROSE = Regime("prose", 0.60, 0.12)
HARD = Regime("hard", 0.25, 0.15)
REGIMES = (COPY, CODE, PROSE)


def synthetic_trace(
    rounds: int = 4000,
    *,
    slots: int = 15,
    regimes: Sequence[Regime] = REGIMES,
    change: float = 0.02,
    overconfidence: float = 2.0,
    blur: float = 0.5,
    seed: int = 0,
) -> Trace:
    """A stream trace of ``rounds`` rounds.

    Args:
        change: chance per round that the regime is drawn anew.
        overconfidence: factor on the true logit; 1 is calibrated.
        blur: standard deviation of the confidence's error on the logit scale; 0 hides nothing.
    """
    draw = random.Random(seed)
    regime = regimes[0]
    made = []
    for _ in range(rounds):
        if draw.random() < change:
            regime = draw.choice(regimes)
        made.append(synthetic_round(regime, draw, slots=slots, overconfidence=overconfidence, blur=blur))
    return Trace(tuple(made), {"target": "synthetic", "drafter": f"synthetic, seed {seed}"})


def synthetic_round(
    regime: Regime, draw: random.Random, *, slots: int = 15, overconfidence: float = 2.0, blur: float = 0.5
) -> TraceRound:
    """One round of a regime."""
    base = _logit(regime.acceptance) + draw.gauss(0.0, 0.9)
    chances, confidence = [], []
    accepted, alive = 0, True
    for slot in range(slots):
        logit = base - regime.decay * slot + draw.gauss(0.0, 1.0)
        chance = _sigmoid(logit)
        alive = alive and draw.random() < chance
        accepted += alive
        probability = min(0.9999, max(0.001, _sigmoid(overconfidence * (logit + draw.gauss(0.0, blur)))))
        entropy = 3.0 * (1.0 - probability)
        chances.append(chance)
        confidence.append(SlotConfidence(probability, max(0.0, _logit(probability) + 1.0), entropy))
    return TraceRound(tuple(confidence), slots, accepted, tag=regime.name, chances=tuple(chances))


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))
