"""Turns the drafter's confidence into calibrated chances of survival, learned from what is accepted.

A drafter's softmax is overconfident (0.97 to 0.99 was accepted 76 % of the time on one drafter), so the conditional
acceptance of a slot is looked up in counts by confidence bin, slot group and temperature bucket. Counts decay. A cell
with few of them leans on a line on the logit scale, ``slope · logit(probability) + offset``, fitted to all cells (Platt
1999) with an offset of its own for each slot group and temperature bucket, which in turn leans on a prior. Within a bin
the line's slope goes on, so that no decision jumps at a bin's edge.

Slots past the chosen depth are censored: they were not looked at and count nothing; nor does a slot behind a rejected
one. Confidence does not see everything: a regime (copying, prose, code) shifts all slots together, so one bias in
logits follows the last rounds quickly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from macspec.errors import MacspecError
from macspec.scheduler.interface import RoundOutcome, SlotConfidence

#: Upper edges of the confidence bins but the last; finer where drafters crowd.
EDGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.97, 0.99, 0.998)
BINS = len(EDGES) + 1
#: First slot, second, third, fourth to fifth, sixth to eighth, the rest.
GROUP_OF_SLOT = (0, 1, 2, 3, 3, 4, 4, 4)
GROUPS = 6
#: Upper edges of the temperature buckets but the last: greedy, cool, warm.
TEMPERATURES = (0.05, 0.7)
BUCKETS = len(TEMPERATURES) + 1
CELLS = BUCKETS * GROUPS * BINS
#: Bumped when bins or meaning change; older stored tables are dropped.
SCHEMA = 1
#: Observations the line's prior counts for, and those the line counts for in a cell.
PRIOR_WEIGHT = 12.0
CELL_WEIGHT = 16.0
#: Rounds between two fits of the line, once the first ones are over.
FIT_EVERY = 16
#: Acceptance is never taken as certain or impossible: bound of a logit, and of the regime's bias.
LOGIT_BOUND = 5.5
BIAS_BOUND = 5.0
#: The bias: size of a step, pull back to zero, memory of surprises, the squared score they may reach
#: by chance, and how much bolder steps become beyond it.
GAIN, PULL, FORGET, CALM, BOLDEST = 0.4, 0.25, 0.8, 5.0, 4.0


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))


_MIDS = tuple(_logit(0.5 * (low + high)) for low, high in zip((0.0, *EDGES), (*EDGES, 0.9998), strict=True))

#: Hits and trials of cells, by cell number.
Counts = dict[int, tuple[float, float]]


class SurvivalError(MacspecError):
    """A stored survival table cannot be used."""

    code = "survival_unusable"


@dataclass(frozen=True, slots=True)
class Prior:
    """The line before anything is seen: acceptance is ``sigmoid(slope · logit(probability) + offset)``.

    The default, a cooled softmax, was fitted to two weak drafters of a 135M target and is below most drafters.
    """

    slope: float = 0.65
    offset: float = -0.35

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slope) and 0.0 < self.slope <= 3.0 and abs(self.offset) <= 5.0):
            raise SurvivalError("A survival prior needs a slope above 0 and up to 3 and an offset within 5.")


class SurvivalModel:
    """Calibrated survival of draft tokens.

    Args:
        prior: the line to start from, shipped per drafter.
        half_life: observations of a cell after which one counts half.
    """

    def __init__(self, prior: Prior | None = None, *, half_life: float = 400.0) -> None:
        self.prior = prior or Prior()
        self._keep = 0.5 ** (1.0 / half_life)
        self._hits = [0.0] * CELLS
        self._seen = [0.0] * CELLS
        self._fresh: Counts = {}
        self._fresh_rounds = 0
        self._slope, self._offset = self.prior.slope, self.prior.offset
        self._offsets = [0.0] * (BUCKETS * GROUPS)
        self._logits = [0.0] * CELLS
        self.bias = 0.0
        self._drift = self._drift_spread = 0.0
        self.rounds = 0
        self._refresh_all()

    # --- reading

    def conditionals(self, confidence: Sequence[SlotConfidence], temperature: float) -> list[float]:
        """Chance that each slot is accepted given that all before it were."""
        base = bisect_right(TEMPERATURES, temperature) * GROUPS * BINS
        return [
            1.0 / (1.0 + math.exp(-self._score(base, slot, item.probability)[1]))
            for slot, item in enumerate(confidence)
        ]

    def survival(self, confidence: Sequence[SlotConfidence], temperature: float) -> list[float]:
        """``s_k`` for k = 1, 2, …: chance that the first k draft tokens are all accepted."""
        alive = 1.0
        result = []
        for chance in self.conditionals(confidence, temperature):
            alive *= chance
            result.append(alive)
        return result

    def _score(self, base: int, slot: int, probability: float) -> tuple[int, float]:
        """Cell and logit of a slot."""
        column = bisect_right(EDGES, probability)
        cell = base + (GROUP_OF_SLOT[slot] if slot < 8 else 5) * BINS + column
        p = 0.9998 if probability > 0.9998 else 0.001 if not probability >= 0.001 else probability
        x = self._logits[cell] + self._slope * (math.log(p / (1.0 - p)) - _MIDS[column]) + self.bias
        return cell, LOGIT_BOUND if x > LOGIT_BOUND else -LOGIT_BOUND if x < -LOGIT_BOUND else x

    # --- learning

    def observe(self, outcome: RoundOutcome) -> None:
        """Count the slots a round really looked at: the accepted ones and the first rejected, within its depth."""
        looked = min(outcome.accepted + 1, outcome.depth, len(outcome.confidence))
        if looked <= 0:
            return
        self.rounds += 1
        self._fresh_rounds += 1
        base = bisect_right(TEMPERATURES, outcome.temperature) * GROUPS * BINS
        surprise = spread = 0.0
        for slot in range(looked):
            cell, score = self._score(base, slot, outcome.confidence[slot].probability)
            chance = 1.0 / (1.0 + math.exp(-score))
            hit = 1.0 if slot < outcome.accepted else 0.0
            surprise += hit - chance
            spread += chance * (1.0 - chance)
            self._count(cell, hit)
        self._follow(surprise, spread)
        if self.rounds % FIT_EVERY == 0 or self.rounds in (4, 8):
            self._fit()

    def _follow(self, surprise: float, spread: float) -> None:
        """One damped Newton step of the bias, bolder while surprises of the last rounds point one way."""
        self._drift = FORGET * self._drift + surprise
        self._drift_spread = FORGET * FORGET * self._drift_spread + spread + 0.05
        bold = min(BOLDEST, max(1.0, self._drift * self._drift / self._drift_spread - CALM))
        bias = self.bias + GAIN * bold * (surprise - PULL * self.bias) / (spread + 4.0)
        self.bias = min(BIAS_BOUND, max(-BIAS_BOUND, bias))

    def _count(self, cell: int, hit: float) -> None:
        self._hits[cell] = self._hits[cell] * self._keep + hit
        self._seen[cell] = self._seen[cell] * self._keep + 1.0
        hits, seen = self._fresh.get(cell, (0.0, 0.0))
        self._fresh[cell] = (hits + hit, seen + 1.0)
        self._refresh(cell)

    def _refresh(self, cell: int) -> None:
        line = self._slope * _MIDS[cell % BINS] + self._offset + self._offsets[cell // BINS]
        seen = self._seen[cell]
        if seen:
            chance = (self._hits[cell] + CELL_WEIGHT / (1.0 + math.exp(-line))) / (seen + CELL_WEIGHT)
            line = _logit(min(0.998, max(0.002, chance)))
        self._logits[cell] = line

    def _refresh_all(self) -> None:
        for cell in range(CELLS):
            self._refresh(cell)

    def _fit(self) -> None:
        """Two Newton steps of the line and its offsets on all counts, drawn to the prior."""
        cells = [(cell, seen) for cell, seen in enumerate(self._seen) if seen > 0.01]
        for _ in range(2):
            weight = PRIOR_WEIGHT
            ga, gb = weight * (self.prior.slope - self._slope), 0.5 * weight * (self.prior.offset - self._offset)
            haa, hab, hbb = weight, 0.0, 0.5 * weight
            rows: dict[int, tuple[float, float]] = {}
            for cell, seen in cells:
                x, row = _MIDS[cell % BINS], cell // BINS
                p = 1.0 / (1.0 + math.exp(-(self._slope * x + self._offset + self._offsets[row])))
                error, curve = self._hits[cell] - seen * p, seen * p * (1.0 - p)
                ga, gb = ga + error * x, gb + error
                haa, hab, hbb = haa + curve * x * x, hab + curve * x, hbb + curve
                g, h = rows.get(row, (0.0, 0.0))
                rows[row] = (g + error, h + curve)
            determinant = haa * hbb - hab * hab
            self._slope += _limit((hbb * ga - hab * gb) / determinant, 0.3)
            self._offset += _limit((haa * gb - hab * ga) / determinant, 0.5)
            self._slope = min(2.0, max(0.1, self._slope))
            for row, (g, h) in rows.items():
                self._offsets[row] += _limit((g - 4.0 * self._offsets[row]) / (h + 4.0), 0.5)
        self._refresh_all()

    # --- storing

    def take_fresh(self) -> tuple[int, Counts]:
        """Rounds, and hits and trials by cell, counted since loading or the last call."""
        fresh = (self._fresh_rounds, self._fresh)
        self._fresh_rounds, self._fresh = 0, {}
        return fresh

    def merge(self, fresh: tuple[int, Counts]) -> None:
        """Add counts another model gave with `take_fresh`; no cell comes to weigh more than decay would let it."""
        rounds, cells = fresh
        self.rounds += rounds
        most = 1.0 / (1.0 - self._keep)
        for cell, (more_hits, more) in cells.items():
            hits, seen = self._hits[cell] + more_hits, self._seen[cell] + more
            shrink = min(1.0, most / seen) if seen else 1.0
            self._hits[cell], self._seen[cell] = hits * shrink, seen * shrink
        self._settle()

    def to_json(self) -> dict[str, Any]:
        """JSON values of the counts; the bias is of the moment and is not kept."""
        return {
            "schema": SCHEMA,
            "rounds": self.rounds,
            "prior": {"slope": self.prior.slope, "offset": self.prior.offset},
            "cells": {
                str(cell): [round(self._hits[cell], 3), round(seen, 3)]
                for cell, seen in enumerate(self._seen)
                if seen >= 0.001
            },
        }

    def load_json(self, values: Any) -> None:
        """Take over stored counts; raises `SurvivalError` and changes nothing when they do not fit."""
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            raise SurvivalError("The stored survival table is of another version and starts anew.")
        hits, seen = [0.0] * CELLS, [0.0] * CELLS
        try:
            prior = Prior(float(values["prior"]["slope"]), float(values["prior"]["offset"]))
            rounds = int(values["rounds"])
            for key, (hit, trials) in values["cells"].items():
                cell = int(key)
                if not (0 <= cell < CELLS and math.isfinite(trials) and 0.0 <= hit <= trials + 1e-3):
                    raise ValueError(f"cell {key} counts {hit} of {trials}")
                hits[cell], seen[cell] = float(hit), float(trials)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SurvivalError(f"The stored survival table is damaged ({error}) and starts anew.") from error
        self.prior, self.rounds = prior, max(0, rounds)
        self._hits, self._seen = hits, seen
        self._fresh_rounds, self._fresh = 0, {}
        self._settle()

    def _settle(self) -> None:
        """Fit from scratch to the counts there are."""
        self._slope, self._offset = self.prior.slope, self.prior.offset
        self._offsets = [0.0] * (BUCKETS * GROUPS)
        for _ in range(4):
            self._fit()


def _limit(value: float, most: float) -> float:
    return min(most, max(-most, value))
