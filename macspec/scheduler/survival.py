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

import numpy as np

from macspec.errors import MacspecError
from macspec.scheduler.interface import RoundOutcome, SlotConfidence
from macspec.scheduler.plan import DepthPlan

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
#: Observations a zero offset of a slot group and temperature bucket counts for.
ROW_WEIGHT = 4.0
#: Rounds between two fits of the line; the first ones follow each other four times as fast.
FIT_EVERY = 64
#: Acceptance is never taken as certain or impossible: bound of a logit, and of the regime's bias.
LOGIT_BOUND = 5.5
BIAS_BOUND = 5.0
#: The bias: size of a step, pull back to zero, memory of surprises, the squared score they may reach
#: by chance, and how much bolder steps become beyond it.
GAIN, PULL, FORGET, CALM, BOLDEST = 0.4, 0.25, 0.8, 5.0, 4.0


def _logit(p: float) -> float:
    return math.log(p / (1.0 - p))


_MIDS = tuple(_logit(0.5 * (low + high)) for low, high in zip((0.0, *EDGES), (*EDGES, 0.9998), strict=True))

#: Mid-bin logit, and slot group with temperature bucket, of every cell.
_X = np.tile(np.array(_MIDS), BUCKETS * GROUPS)
_ROW = np.repeat(np.arange(BUCKETS * GROUPS), BINS)

#: Hits and trials of cells, by cell number.
Counts = dict[int, tuple[float, float]]


class SurvivalError(MacspecError):
    """A stored survival table cannot be used."""

    code = "survival_unusable"


@dataclass(frozen=True, slots=True)
class Prior:
    """The line before anything is seen: acceptance is ``sigmoid(slope · logit(probability) + offset)``.

    Fits to recorded rounds of three small DFlash drafters gave slopes of 0.84 to 0.96 and offsets of -0.55 to 0.09; the
    default lies between, on the cautious side.
    """

    slope: float = 0.9
    offset: float = -0.15

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
        # Cells are brought up to date with the line when they are read: most never are.
        self._fits = 1
        self._fitted = [0] * CELLS
        self.bias = 0.0
        self._drift = self._drift_spread = 0.0
        self.rounds = 0

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

    def plan(self, slots: int, temperature: float, price: Sequence[float], again: Sequence[float] = ()) -> DepthPlan:
        """`conditionals` of the first ``slots`` slots as numbers, with what depths cost; see `DepthPlan`."""
        base = bisect_right(TEMPERATURES, temperature) * GROUPS * BINS
        rows = [base + (GROUP_OF_SLOT[slot] if slot < 8 else 5) * BINS for slot in range(slots)]
        for cell in {row + column for row in rows for column in range(BINS)}:
            if self._fitted[cell] != self._fits:
                self._refresh(cell)
        return DepthPlan(
            price=tuple(price[: slots + 1]),
            edges=EDGES,
            mids=_MIDS,
            logits=tuple(tuple(self._logits[row : row + BINS]) for row in rows),
            slope=self._slope,
            bias=self.bias,
            bound=LOGIT_BOUND,
            again=tuple(again),
        )

    def _score(self, base: int, slot: int, probability: float) -> tuple[int, float]:
        """Cell and logit of a slot."""
        column = bisect_right(EDGES, probability)
        cell = base + (GROUP_OF_SLOT[slot] if slot < 8 else 5) * BINS + column
        p = 0.9998 if probability > 0.9998 else 0.001 if not probability >= 0.001 else probability
        if self._fitted[cell] != self._fits:
            self._refresh(cell)
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
        every = FIT_EVERY if self.rounds >= 4 * FIT_EVERY else FIT_EVERY // 4
        if self.rounds % every == 0 or self.rounds in (4, 8):
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
        self._fitted[cell] = self._fits

    def _fit(self) -> None:
        """Two Newton steps of the line and its offsets on all counts, drawn to the prior."""
        hits, seen = np.array(self._hits), np.array(self._seen)
        for _ in range(2):
            line = self._slope * _X + self._offset + np.array(self._offsets)[_ROW]
            p = 1.0 / (1.0 + np.exp(-line))
            error, curve = hits - seen * p, seen * p * (1.0 - p)
            ga = float(error @ _X) + PRIOR_WEIGHT * (self.prior.slope - self._slope)
            gb = float(error.sum()) + 0.5 * PRIOR_WEIGHT * (self.prior.offset - self._offset)
            haa = float(curve @ (_X * _X)) + PRIOR_WEIGHT
            hab, hbb = float(curve @ _X), float(curve.sum()) + 0.5 * PRIOR_WEIGHT
            determinant = haa * hbb - hab * hab
            slope = self._slope + _limit((hbb * ga - hab * gb) / determinant, 0.3)
            self._slope = min(2.0, max(0.1, slope))
            self._offset += _limit((haa * gb - hab * ga) / determinant, 0.5)
            rows = len(self._offsets)
            errors, curves = np.bincount(_ROW, error, rows).tolist(), np.bincount(_ROW, curve, rows).tolist()
            for row, (g, h) in enumerate(zip(errors, curves, strict=True)):
                own = self._offsets[row]
                self._offsets[row] = own + _limit((g - ROW_WEIGHT * own) / (h + ROW_WEIGHT), 0.5)
        self._fits += 1

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
