"""Depth rules as others published them, for comparison. Each is kept to its source, weaknesses included."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from macspec.scheduler.cost import CostModel
from macspec.scheduler.depth import FLAT_SAVING
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState


class DCutPolicy:
    """D-Cut (arXiv 2607.14647, Tencent AngelSlim; vLLM pull request 47131) for one sequence.

    Survival is the raw product of the softmax probabilities of the draft tokens. Only four budgets are tried, the
    shares 1/4, 1/2, 3/4 and 1 of the verification slots; the one with the largest ``Σ survival / C`` wins, where C is
    the profiled cost of draft and verification together. The bonus token is not in the numerator. With ``flat_skip``
    the cut is skipped when it saves less than 12 % (SGLang's revision).
    """

    name = "dcut"
    needs_confidence = True
    SHARES = (0.25, 0.5, 0.75, 1.0)

    def __init__(self, cost: CostModel, *, flat_skip: bool = False) -> None:
        self.cost = cost
        self._flat_skip = flat_skip

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth

    def choose(self, state: RoundState) -> Decision:
        limit = min(state.max_depth, self.cost.max_depth, len(state.confidence))
        if limit <= 0:
            return Decision(0, "dcut: nothing to verify")
        verify = self.cost.verify_curve(state.context)
        fixed = self.cost.draft_ms(state.context) + self.cost.overhead_ms
        best, best_value, best_tokens = limit, -1.0, 0.0
        for share in self.SHARES:
            keep = max(1, math.ceil((limit + 1) * share) - 1)
            alive, total = 1.0, 0.0
            for item in state.confidence[:keep]:
                alive *= item.probability
                total += alive
            value = total / (verify[keep] + fixed)
            if value > best_value:
                best, best_value, best_tokens = keep, value, total
        full = verify[limit] + fixed
        if self._flat_skip and 1.0 - (verify[best] + fixed) / full < FLAT_SAVING:
            return Decision(limit, "dcut: the cut saves too little")
        return Decision(best, "dcut: best of four budgets", 1.0 + best_tokens, verify[best] + fixed)

    def observe(self, outcome: RoundOutcome) -> None:
        self.cost.observe(outcome)


class SequentialTemperature:
    """Sequential temperature scaling of DSpark (arXiv 2607.05147): one temperature per slot, fitted left to right.

    Each is found by a grid search that minimises the expected calibration error of the cumulative product with the
    temperatures before it held fixed. Refitted now and then on the last rounds whose slot was looked at.
    """

    GRID = tuple(float(x) for x in np.geomspace(0.4, 4.0, 19))
    EVERY = 128
    KEEP = 768

    def __init__(self) -> None:
        self.temperatures: list[float] = []
        self._rounds: deque[tuple[tuple[float, ...], int, int]] = deque(maxlen=self.KEEP)
        self._since = 0

    def scale(self, slot: int, probability: float) -> float:
        """Calibrated chance of a slot."""
        logit = _logit(probability)
        if slot < len(self.temperatures):
            logit /= self.temperatures[slot]
        return 1.0 / (1.0 + math.exp(-logit))

    def add(self, outcome: RoundOutcome) -> None:
        """Keep a round and refit when it is time."""
        if outcome.depth <= 0 or not outcome.confidence:
            return
        logits = tuple(_logit(item.probability) for item in outcome.confidence)
        self._rounds.append((logits, outcome.depth, outcome.accepted))
        self._since += 1
        if self._since >= self.EVERY:
            self._since = 0
            self._fit()

    def _fit(self) -> None:
        slots = max(len(logits) for logits, _, _ in self._rounds)
        temperatures: list[float] = []
        # Rounds cut before a slot leave it unknown and drop out from there on.
        known = [item for item in self._rounds if len(item[0]) == slots]
        product = np.ones(len(known))
        for slot in range(slots):
            keep = [i for i, (_, depth, accepted) in enumerate(known) if depth > slot or accepted < depth]
            if len(keep) < 32:
                break
            known = [known[i] for i in keep]
            product = product[keep]
            logit = np.array([item[0][slot] for item in known])
            alive = np.array([item[2] > slot for item in known], dtype=float)
            candidates = [product / (1.0 + np.exp(-logit / t)) for t in self.GRID]
            best = min(range(len(self.GRID)), key=lambda i: calibration_error(candidates[i], alive))
            temperatures.append(self.GRID[best])
            product = candidates[best]
        if temperatures:
            self.temperatures = temperatures


def calibration_error(predicted: npt.NDArray[np.float64], happened: npt.NDArray[np.float64], bins: int = 10) -> float:
    """Expected calibration error: mean over equal-width bins of |mean prediction - frequency|, by bin size."""
    if not len(predicted):
        return 0.0
    column = np.minimum((predicted * bins).astype(int), bins - 1)
    gaps = np.abs(
        np.bincount(column, weights=predicted, minlength=bins) - np.bincount(column, weights=happened, minlength=bins)
    )
    return float(gaps.sum() / len(predicted))


class DSparkPolicy:
    """DSpark's prefix scheduler, Algorithm 1 (arXiv 2607.05147, DeepSpec), for one sequence.

    Admits draft tokens one at a time while ``Θ = τ · SPS(B)`` grows, τ starting at one for the bonus token and SPS
    being profiled engine steps per second at B rows; stops at the first that does not improve it. The chance of a slot
    is the confidence head's where the drafter has one (its ``probability``), else the draft token's softmax
    probability; both go through sequential temperature scaling.
    """

    name = "dspark"
    needs_confidence = True

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self.scaling = SequentialTemperature()

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth

    def choose(self, state: RoundState) -> Decision:
        limit = min(state.max_depth, self.cost.max_depth, len(state.confidence))
        verify = self.cost.verify_curve(state.context)
        fixed = self.cost.draft_ms(state.context) + self.cost.overhead_ms
        depth, tokens, alive = 0, 1.0, 1.0
        best = tokens / (verify[0] + fixed)
        for slot in range(limit):
            alive *= self.scaling.scale(slot, state.confidence[slot].probability)
            value = (tokens + alive) / (verify[slot + 1] + fixed)
            if value <= best:
                break
            tokens, best, depth = tokens + alive, value, slot + 1
        return Decision(depth, "dspark: stopped at the first that did not pay", tokens, verify[depth] + fixed)

    def observe(self, outcome: RoundOutcome) -> None:
        self.cost.observe(outcome)
        self.scaling.add(outcome)


class SpecDecPlusPolicy:
    """SpecDec++ (arXiv 2405.19715): go on until ``P(some draft token is rejected)`` exceeds a threshold.

    The paper predicts acceptance with a trained head; here the draft token's probability stands in for it. Threshold
    0.7 and the shortest draft of 2 are the published ones (sample.py); no cost enters.
    """

    name = "specdec++"
    needs_confidence = True

    def __init__(self, threshold: float = 0.7, shortest: int = 2) -> None:
        self.threshold = threshold
        self.shortest = shortest

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth

    def choose(self, state: RoundState) -> Decision:
        limit = min(state.max_depth, len(state.confidence))
        depth, alive, tokens = 0, 1.0, 1.0
        for item in state.confidence[:limit]:
            alive *= item.probability
            if depth >= self.shortest and 1.0 - alive > self.threshold:
                break
            depth += 1
            tokens += alive
        return Decision(depth, f"specdec++: rejection chance up to {self.threshold}", tokens)

    def observe(self, outcome: RoundOutcome) -> None:
        """The threshold is fixed."""


class AdaEDLPolicy:
    """AdaEDL (arXiv 2410.18351): stop where ``1 - sqrt(γ·H)`` falls below a threshold λ, H the draft's entropy.

    The bound on acceptance follows from Pinsker's inequality. λ follows the acceptance rate, as in Draft & Verify
    (arXiv 2309.08168): ``AR ← 0.5·AR + 0.5·r``; λ is raised by ε = 0.01 when AR is under the target of 0.9, else
    lowered; smoothed with 0.9.

    Neither paper was at hand. The stopping rule and γ = 0.2 come from a summary of AdaEDL; the form of λ's update and
    its constants (0.5, 0.9, 0.01, 0.9) are recalled from Draft & Verify; the start of 0.4 and the limits 0.05 and 0.95
    are ours.
    """

    name = "adaedl"
    needs_confidence = True
    GAMMA = 0.2

    def __init__(self, target: float = 0.9, start: float = 0.4) -> None:
        self.target = target
        self.threshold = start
        self._rate = target

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth

    def choose(self, state: RoundState) -> Decision:
        limit = min(state.max_depth, len(state.confidence))
        depth = 0
        for item in state.confidence[:limit]:
            if depth and 1.0 - math.sqrt(self.GAMMA * max(0.0, item.entropy)) < self.threshold:
                break
            depth += 1
        return Decision(depth, f"adaedl: entropy bound under {self.threshold:.2f}")

    def observe(self, outcome: RoundOutcome) -> None:
        if outcome.depth <= 0:
            return
        self._rate = 0.5 * self._rate + 0.5 * outcome.accepted / outcome.depth
        step = 0.01 if self._rate < self.target else -0.01
        self.threshold = min(0.95, max(0.05, 0.9 * self.threshold + 0.1 * (self.threshold + step)))


def _logit(probability: float) -> float:
    p = min(1.0 - 1e-5, max(1e-5, probability))
    return math.log(p / (1.0 - p))
