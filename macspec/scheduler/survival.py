"""Turns the drafter's confidence into calibrated chances of survival, learned from what is accepted.

A drafter's softmax is overconfident (0.97 to 0.99 was accepted 76 % of the time on one drafter), so the conditional
acceptance of a slot is looked up in counts by confidence bin, slot group and temperature bucket. Counts decay, start
from a prior, and pool: a cell leans on its bin over all cells, the bin on the prior. Slots past the chosen depth are
censored: they were not looked at and count nothing; nor does a slot behind a rejected one.

Confidence does not see everything. A regime (copying, prose, code) shifts all slots together, so one bias in logits
follows the last rounds quickly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
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
#: Bumped when bins or meaning change; older stored tables are dropped.
SCHEMA = 1
#: Acceptance is never taken as certain or impossible.
LEAST, MOST = 0.01, 0.995


class SurvivalError(MacspecError):
    """A stored survival table cannot be used."""

    code = "survival_unusable"


def default_prior() -> list[float]:
    """Conditional acceptance by bin for a drafter nothing is known of: its mid-bin confidence, cooled."""
    edges = (0.0, *EDGES, 1.0)
    return [0.05 + 0.85 * (0.5 * (low + high)) ** 1.2 for low, high in zip(edges, edges[1:], strict=False)]


class SurvivalModel:
    """Calibrated survival of draft tokens.

    Args:
        prior: conditional acceptance by confidence bin before anything is seen (`default_prior`).
        half_life: observations of a cell after which one counts half.
    """

    def __init__(self, prior: Sequence[float] | None = None, *, half_life: float = 400.0) -> None:
        self.prior = list(prior) if prior is not None else default_prior()
        if len(self.prior) != BINS or not all(0.0 < p < 1.0 for p in self.prior):
            raise SurvivalError(f"A survival prior needs {BINS} chances strictly between 0 and 1.")
        self._keep = 0.5 ** (1.0 / half_life)
        size = BUCKETS * GROUPS * BINS
        self._hits = [0.0] * size
        self._seen = [0.0] * size
        self._bin_hits = [0.0] * BINS
        self._bin_seen = [0.0] * BINS
        self._fresh: dict[int, tuple[float, float]] = {}
        self._fresh_rounds = 0
        self._odds = [0.0] * size
        self.bias = 0.0
        self.rounds = 0
        self._refresh_all()

    # --- reading

    def conditionals(self, confidence: Sequence[SlotConfidence], temperature: float) -> list[float]:
        """Chance that each slot is accepted given that all before it were."""
        base = bisect_right(TEMPERATURES, temperature) * GROUPS * BINS
        groups = GROUP_OF_SLOT
        bias = math.exp(self.bias)
        odds = self._odds
        result = []
        for slot, item in enumerate(confidence):
            group = groups[slot] if slot < 8 else 5
            x = odds[base + group * BINS + bisect_right(EDGES, item.probability)] * bias
            result.append(x / (1.0 + x))
        return result

    def survival(self, confidence: Sequence[SlotConfidence], temperature: float) -> list[float]:
        """``s_k`` for k = 1, 2, …: chance that the first k draft tokens are all accepted."""
        alive = 1.0
        result = []
        for chance in self.conditionals(confidence, temperature):
            alive *= chance
            result.append(alive)
        return result

    # --- learning

    def observe(self, outcome: RoundOutcome) -> None:
        """Count the slots a round really looked at: the accepted ones and the first rejected, within its depth."""
        looked = min(outcome.accepted + 1, outcome.depth, len(outcome.confidence))
        if looked <= 0:
            return
        self.rounds += 1
        self._fresh_rounds += 1
        base = bisect_right(TEMPERATURES, outcome.temperature) * GROUPS * BINS
        bias = math.exp(self.bias)
        surprise = 0.0
        spread = 0.0
        for slot in range(looked):
            column = bisect_right(EDGES, outcome.confidence[slot].probability)
            cell = base + (GROUP_OF_SLOT[slot] if slot < 8 else 5) * BINS + column
            hit = 1.0 if slot < outcome.accepted else 0.0
            x = self._odds[cell] * bias
            chance = x / (1.0 + x)
            surprise += hit - chance
            spread += chance * (1.0 - chance)
            self._count(cell, column, hit)
        # One damped Newton step of a logistic offset, with a pull back to zero.
        self.bias += 0.5 * (surprise - 0.02 * self.bias) / (spread + 4.0)
        self.bias = min(1.5, max(-1.5, self.bias))

    def _count(self, cell: int, column: int, hit: float) -> None:
        keep = self._keep
        self._hits[cell] = self._hits[cell] * keep + hit
        self._seen[cell] = self._seen[cell] * keep + 1.0
        self._bin_hits[column] = self._bin_hits[column] * keep + hit
        self._bin_seen[column] = self._bin_seen[column] * keep + 1.0
        hits, seen = self._fresh.get(cell, (0.0, 0.0))
        self._fresh[cell] = (hits + hit, seen + 1.0)
        self._refresh(cell, column)

    def _refresh(self, cell: int, column: int) -> None:
        pooled = (self._bin_hits[column] + 4.0 * self.prior[column]) / (self._bin_seen[column] + 4.0)
        chance = (self._hits[cell] + 8.0 * pooled) / (self._seen[cell] + 8.0)
        chance = min(MOST, max(LEAST, chance))
        self._odds[cell] = chance / (1.0 - chance)

    def _refresh_all(self) -> None:
        for cell in range(len(self._hits)):
            self._refresh(cell, cell % BINS)

    # --- storing

    def to_json(self) -> dict[str, Any]:
        """JSON values of the counts; the bias is of the moment and is not kept."""
        return {
            "schema": SCHEMA,
            "rounds": self.rounds,
            "prior": self.prior,
            "hits": self._hits,
            "seen": self._seen,
            "bin_hits": self._bin_hits,
            "bin_seen": self._bin_seen,
        }

    def take_fresh(self) -> tuple[int, dict[int, tuple[float, float]]]:
        """Rounds, and hits and trials by cell, counted since loading or the last call."""
        fresh = (self._fresh_rounds, self._fresh)
        self._fresh_rounds, self._fresh = 0, {}
        return fresh

    def merge(self, fresh: tuple[int, dict[int, tuple[float, float]]]) -> None:
        """Add counts another model gave with `take_fresh`; no cell comes to weigh more than decay would let it."""
        rounds, cells = fresh
        self.rounds += rounds
        most = 1.0 / (1.0 - self._keep)
        for cell, (hits, seen) in cells.items():
            column = cell % BINS
            self._hits[cell], self._seen[cell] = _added(self._hits[cell], self._seen[cell], hits, seen, most)
            self._bin_hits[column], self._bin_seen[column] = _added(
                self._bin_hits[column], self._bin_seen[column], hits, seen, most
            )
        self._refresh_all()

    def load_json(self, values: Any) -> None:
        """Take over stored counts; raises `SurvivalError` and changes nothing when they do not fit."""
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            raise SurvivalError("The stored survival table is of another version and starts anew.")
        size = len(self._hits)
        tables = {}
        for key, length in (("hits", size), ("seen", size), ("bin_hits", BINS), ("bin_seen", BINS), ("prior", BINS)):
            table = values.get(key)
            if not isinstance(table, list) or len(table) != length or not all(_count_like(x) for x in table):
                raise SurvivalError(f"The stored survival table has no usable {key!r} and starts anew.")
            tables[key] = [float(x) for x in table]
        pairs = zip(tables["hits"] + tables["bin_hits"], tables["seen"] + tables["bin_seen"], strict=True)
        if not all(hits <= seen + 1e-6 for hits, seen in pairs):
            raise SurvivalError("The stored survival table counts more hits than trials and starts anew.")
        if not all(0.0 < p < 1.0 for p in tables["prior"]):
            raise SurvivalError("The stored survival table has an impossible prior and starts anew.")
        rounds = values.get("rounds", 0)
        self.rounds = rounds if isinstance(rounds, int) and rounds >= 0 else 0
        self.prior = tables["prior"]
        self._hits, self._seen = tables["hits"], tables["seen"]
        self._bin_hits, self._bin_seen = tables["bin_hits"], tables["bin_seen"]
        self._fresh_rounds, self._fresh = 0, {}
        self._refresh_all()


def _added(hits: float, seen: float, more_hits: float, more: float, most: float) -> tuple[float, float]:
    hits, seen = hits + more_hits, seen + more
    return (hits, seen) if seen <= most else (hits * most / seen, most)


def _count_like(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
