"""The closest peer's rule: one running acceptance rate and the measured costs, no per-round confidence."""

from __future__ import annotations

from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState

ALPHA = 0.02
PRIOR = 0.65
HYSTERESIS = 1.03
REPICK_EVERY = 4
PROBE_EVERY = 8
#: Observations before not speculating is considered.
PARK_AFTER = 24
#: Rounds at a depth before its observed time per token overrules the model, the weight of one, and their life.
TRUST_AFTER, TIME_ALPHA, STALE_AFTER = 4, 0.1, 32


class EwmaPolicy:
    """mlx-dspark's cap controller (github.com/ARahim3/mlx-dspark, src/mlx_dspark/calibrate.py), written anew.

    One scalar acceptance p (weight 0.02, prior 0.65, the last of a fully accepted draft censored) gives
    ``E = Σ p^i``; every 4 rounds the depth with the best ``E / (draft + verify + overhead)`` is picked if it beats the
    present one by 3 %; observed milliseconds per token overrule the model after 4 rounds at a depth. It parks at zero
    and probes with one draft token every 8 rounds, as that project does for its own drafters.
    """

    name = "ewma"
    needs_confidence = False

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self.acceptance = PRIOR
        self.depth = 2
        self._trials = 0
        self._rounds = 0
        self._seen: dict[int, tuple[float, int, int]] = {}
        self._probe = False

    def draft_limit(self, state: RoundState) -> int:
        self._probe = self.depth == 0 and self._rounds % PROBE_EVERY == 0
        return min(state.max_depth, 1 if self._probe else self.depth)

    def choose(self, state: RoundState) -> Decision:
        limit = min(state.max_depth, self.cost.max_depth)
        depth = 1 if self._probe else self.depth
        return Decision(min(depth, limit), "ewma: probe" if self._probe else f"ewma: acceptance {self.acceptance:.2f}")

    def observe(self, outcome: RoundOutcome) -> None:
        self.cost.observe(outcome)
        self._rounds += 1
        depth, accepted = outcome.depth, outcome.accepted
        if depth:
            for _ in range(accepted):
                self.acceptance += ALPHA * (1.0 - self.acceptance)
            if accepted < depth:
                self.acceptance -= ALPHA * self.acceptance
            self._trials += min(accepted + 1, depth)
        self._time(outcome)
        if self._rounds % REPICK_EVERY == 0:
            self._pick(outcome.context)

    def _time(self, outcome: RoundOutcome) -> None:
        ms = (outcome.draft_ms + outcome.verify_ms + outcome.other_ms) / max(1, outcome.committed)
        if ms > 0.0 and not (self._probe and outcome.depth):
            mean, count, _ = self._seen.get(outcome.depth, (ms, 0, 0))
            self._seen[outcome.depth] = (mean + TIME_ALPHA * (ms - mean), count + 1, self._rounds)

    def _pick(self, context: int) -> None:
        verify = self.cost.verify_curve(context)
        fixed = self.cost.draft_ms(context) + self.cost.overhead_ms
        rates = []
        tokens, power = 1.0, 1.0
        for depth in range(len(verify)):
            if depth:
                power *= self.acceptance
                tokens += power
            model = tokens / (verify[depth] + (fixed if depth else 0.0))
            mean, count, last = self._seen.get(depth, (0.0, 0, 0))
            trusted = count >= TRUST_AFTER and self._rounds - last <= STALE_AFTER and mean > 0.0
            rates.append(1.0 / mean if trusted else model)
        if self._trials < PARK_AFTER:
            rates[0] = 0.0
        best = max(range(len(rates)), key=rates.__getitem__)
        if rates[best] > HYSTERESIS * rates[min(self.depth, len(rates) - 1)]:
            self.depth = best
