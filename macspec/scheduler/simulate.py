"""Replays depth rules over recorded rounds and any cost ladder. Everything it prints is simulated.

A stream trace is replayed round by round: each rule meets the same rounds, whatever it commits. A trace with a draft at
every position is replayed exactly: each rule moves on by what it commits.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from macspec.errors import MacspecError, RequestError
from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import DepthPolicy, RoundOutcome, RoundState
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.oracle import OraclePolicy
from macspec.scheduler.policies import make_policy
from macspec.scheduler.trace import Trace, TraceRound


@dataclass(slots=True)
class Result:
    """One rule on one ladder."""

    policy: str
    ladder: str
    rounds: int = 0
    tokens: int = 0
    ms: float = 0.0
    parked_ms: float = 0.0
    probe_ms: float = 0.0
    depths: dict[int, int] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Simulated speed."""
        return 1000.0 * self.tokens / self.ms if self.ms else 0.0

    @property
    def parked(self) -> float:
        """Share of the time spent in plain steps without a draft."""
        return self.parked_ms / self.ms if self.ms else 0.0

    @property
    def probing(self) -> float:
        """Share of the time probes took beyond plain steps."""
        return self.probe_ms / self.ms if self.ms else 0.0


def replay(
    policy: DepthPolicy, trace: Trace, ladder: Ladder, *, noise: float = 0.0, seed: int = 0, limit: int | None = None
) -> Result:
    """Run one rule over a trace with the ladder's times.

    Args:
        noise: relative standard deviation of every time, log-normal.
        limit: stop after this many rounds.
    """
    random_ = random.Random(seed)
    cost = CostModel(ladder, adapt=False)
    result = Result(policy.name, ladder.name)
    index = 0
    while index < len(trace.rounds) and (limit is None or result.rounds < limit):
        item = trace.rounds[index]
        outcome, reason = _round(
            policy, item, cost, lambda: math.exp(noise * random_.gauss(0.0, 1.0)) if noise else 1.0
        )
        ms = outcome.draft_ms + outcome.verify_ms + outcome.other_ms
        plain = cost.plain_ms(item.context)
        result.rounds += 1
        result.tokens += outcome.committed
        result.ms += ms
        result.depths[outcome.depth] = result.depths.get(outcome.depth, 0) + 1
        if not outcome.drafted:
            result.parked_ms += ms
        elif "probe" in reason:
            result.probe_ms += max(0.0, ms - plain)
        index = _next(trace, index, outcome.committed)
    return result


def _next(trace: Trace, index: int, committed: int) -> int:
    """Index of the round met after the one at ``index`` committed that many tokens."""
    rounds = trace.rounds
    here = rounds[index]
    index += 1
    if trace.every_position:
        target = here.position + committed
        while index < len(rounds) and rounds[index].text == here.text and rounds[index].position < target:
            index += 1
    return index


def _round(
    policy: DepthPolicy, item: TraceRound, cost: CostModel, jitter: Callable[[], float]
) -> tuple[RoundOutcome, str]:
    most = min(len(item.confidence), cost.max_depth)
    if isinstance(policy, OraclePolicy):
        policy.foresee(item.accepted, item.chances)
    before = RoundState(most, item.context, item.temperature)
    drafts = min(most, policy.draft_limit(before))
    confidence = item.confidence[:drafts]
    decision = policy.choose(RoundState(drafts, item.context, item.temperature, confidence, features=item.features))
    depth = decision.depth
    if not 0 <= depth <= drafts:
        raise AssertionError(f"{policy.name} chose depth {depth} of at most {drafts}")
    accepted = min(item.accepted, depth)
    overhead = cost.overhead_ms if drafts else cost.ladder.plain_overhead
    outcome = RoundOutcome(
        depth=depth,
        accepted=accepted,
        committed=accepted + 1,
        drafted=drafts,
        context=item.context,
        draft_ms=cost.draft_ms(item.context) * jitter() if drafts else 0.0,
        verify_ms=cost.verify_curve(item.context)[depth] * jitter(),
        other_ms=overhead + cost.replay_ms(accepted, depth),
        temperature=item.temperature,
        confidence=confidence,
    )
    policy.observe(outcome)
    return outcome, decision.reason


def _fixed_speed(depth: int, trace: Trace, cost: CostModel) -> float:
    """Tokens per millisecond of a fixed depth: what `replay` finds, at a fraction of its time."""
    tokens, ms, index = 0, 0.0, 0
    while index < len(trace.rounds):
        item = trace.rounds[index]
        used = min(depth, len(item.confidence), cost.max_depth)
        accepted = min(item.accepted, used)
        tokens += accepted + 1
        ms += cost.round_ms(used, item.context, drafted=used > 0) + cost.replay_ms(accepted, used)
        index = _next(trace, index, accepted + 1)
    return tokens / ms


def simulate(
    name: str, trace: Trace, ladder: Ladder, *, noise: float = 0.0, seed: int = 0, predictor: Path | None = None
) -> Result:
    """Replay the rule called ``name``; ``best-fixed`` is the best single depth in hindsight, plain included."""
    if name == "best-fixed":
        most = min(trace.slots, ladder.max_rows - 1)
        cost = CostModel(ladder, adapt=False)
        depth = max(range(most + 1), key=lambda depth: _fixed_speed(depth, trace, cost))
        best = replay(make_policy(f"fixed:{depth}"), trace, ladder)
        best.policy = f"best-fixed ({depth})"
        return best
    if name in ("oracle", "informed"):
        if name == "informed" and not all(item.chances for item in trace.rounds):
            raise RequestError("The informed bound needs the true chances, which only synthetic traces have.")
        # The best rate solves rate = tokens(rate) / ms(rate); a few replays reach it from below.
        cost = CostModel(ladder, adapt=False)
        rate = 1.0 / cost.plain_ms(trace.rounds[0].context)
        result = replay(OraclePolicy(cost, rate, informed=name == "informed"), trace, ladder)
        for _ in range(6):
            rate = result.tokens / result.ms
            again = replay(OraclePolicy(cost, rate, informed=name == "informed"), trace, ladder)
            if again.tokens_per_second <= result.tokens_per_second:
                break
            result = again
        return result
    if name == "dscale" and not all(item.features for item in trace.rounds):
        raise RequestError("The policy 'dscale' reads features this trace does not hold.", param="policy")
    return replay(make_policy(name, CostModel(ladder), predictor=predictor), trace, ladder, noise=noise, seed=seed)


def main() -> int:
    """``python -m macspec.scheduler.simulate``, the same as ``macspec simulate``."""
    # Imported here because the command is built on this module.
    from macspec.scheduler import command

    parser = argparse.ArgumentParser(prog="macspec simulate", description="Replay depth rules over a recorded trace.")
    command.add_arguments(parser)
    try:
        return command.run(parser.parse_args())
    except MacspecError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
