"""Replays depth rules over recorded rounds and any cost ladder. Everything it prints is simulated.

A stream trace is replayed round by round: each rule meets the same rounds, whatever it commits. A trace with a draft at
every position is replayed exactly: each rule moves on by what it commits.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from macspec.errors import MacspecError, RequestError
from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import DepthPolicy, RoundOutcome, RoundState
from macspec.scheduler.ladder import Ladder, LadderError
from macspec.scheduler.oracle import OraclePolicy
from macspec.scheduler.policies import COMPARED, make_policy
from macspec.scheduler.trace import Trace, TraceRound, read_trace


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
    drafts = policy.wants_draft(before)
    confidence = item.confidence[:most] if drafts else ()
    decision = policy.choose(RoundState(most, item.context, item.temperature, confidence, features=item.features))
    depth = decision.depth
    if not 0 <= depth <= (most if drafts else 0):
        raise AssertionError(f"{policy.name} chose depth {depth} of at most {most if drafts else 0}")
    accepted = min(item.accepted, depth)
    overhead = cost.overhead_ms if drafts else cost.ladder.plain_overhead
    outcome = RoundOutcome(
        depth=depth,
        accepted=accepted,
        committed=accepted + 1,
        drafted=most if drafts else 0,
        context=item.context,
        draft_ms=cost.draft_ms(item.context) * jitter() if drafts else 0.0,
        verify_ms=cost.verify_curve(item.context)[depth] * jitter(),
        other_ms=overhead + cost.replay_ms(accepted, depth),
        temperature=item.temperature,
        confidence=confidence,
    )
    policy.observe(outcome)
    return outcome, decision.reason


def simulate(name: str, trace: Trace, ladder: Ladder, *, noise: float = 0.0, seed: int = 0) -> Result:
    """Replay the rule called ``name``; ``best-fixed`` is the best single depth in hindsight, plain included."""
    if name == "best-fixed":
        most = min(trace.slots, ladder.max_rows - 1)
        tried = [replay(make_policy(f"fixed:{depth}"), trace, ladder) for depth in range(most + 1)]
        best = max(tried, key=lambda result: result.tokens_per_second)
        best.policy = f"best-fixed ({best.policy.removeprefix('fixed:')})"
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
    return replay(make_policy(name, CostModel(ladder)), trace, ladder, noise=noise, seed=seed)


# --- command


def ladder_directory() -> Path:
    """Where the published ladders lie in a checkout."""
    return Path(__file__).resolve().parents[2] / "benchmarks" / "ladders"


def published_ladders() -> list[Ladder]:
    """Every ladder in `ladder_directory`, by name."""
    return [Ladder.read(path) for path in sorted(ladder_directory().glob("*.json"))]


def find_ladders(choice: str, trace: Trace) -> list[Ladder]:
    """The ladders meant by ``all``, ``self``, a file or a published name; raises `LadderError` when there is none."""
    if choice == "all":
        return published_ladders()
    if choice == "self":
        if "ladder" not in trace.header:
            raise LadderError("The trace holds no ladder of its own machine; name one or give a file with --ladder.")
        return [Ladder.from_json(trace.header["ladder"], name="self")]
    path = Path(choice)
    if path.suffix == ".json" or path.exists():
        return [Ladder.read(path)]
    named = ladder_directory() / f"{choice}.json"
    if not named.exists():
        known = ", ".join(sorted(item.stem for item in ladder_directory().glob("*.json"))) or "none found"
        raise LadderError(f"There is no ladder {choice!r}; use all, self, a file or one of: {known}.")
    return [Ladder.read(named)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `macspec simulate`."""
    parser.add_argument("trace", type=Path, help="a trace recorded with macspec bench --trace FILE")
    parser.add_argument(
        "--ladder", default="self", metavar="NAME", help="self, all, a file or a published ladder (default: self)"
    )
    parser.add_argument("--policy", default="rate", metavar="NAME", help="all, or names separated by commas")
    parser.add_argument("--noise", type=float, default=0.0, help="relative spread of every time (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run `macspec simulate`; returns the exit code."""
    trace = read_trace(args.trace)
    names = list(COMPARED) if args.policy == "all" else [name.strip() for name in args.policy.split(",")]
    results = []
    for ladder in find_ladders(args.ladder, trace):
        reference = {name: simulate(name, trace, ladder) for name in ("plain", "oracle", "best-fixed")}
        for name in names:
            results.append((reference, simulate(name, trace, ladder, noise=args.noise)))
        results.append((reference, reference["best-fixed"]))
        results.append((reference, reference["oracle"]))
    if args.json:
        print(json.dumps([_values(*pair) for pair in results], indent=1))
    else:
        _print(trace, results)
    return 0


Compared = tuple[dict[str, Result], Result]


def _values(reference: dict[str, Result], result: Result) -> dict[str, Any]:
    return {
        "ladder": result.ladder,
        "policy": result.policy,
        "simulated_tokens_per_second": round(result.tokens_per_second, 2),
        "to_plain": round(result.tokens_per_second / reference["plain"].tokens_per_second, 4),
        "regret": round(1.0 - result.tokens_per_second / reference["oracle"].tokens_per_second, 4),
        "parked": round(result.parked, 4),
        "probing": round(result.probing, 4),
        "depths": {str(depth): count for depth, count in sorted(result.depths.items())},
    }


def _print(trace: Trace, results: Sequence[Compared]) -> None:
    print(f"Simulated: {len(trace.rounds)} recorded rounds", end="")
    print(f" ({trace.censored} cut ones left out)" if trace.censored else "", flush=True)
    ladder = ""
    logs: dict[str, list[float]] = {}
    for reference, result in results:
        if result.ladder != ladder:
            ladder = result.ladder
            print(f"\n{ladder}: plain {reference['plain'].tokens_per_second:.1f} tok/s")
            print(
                f"  {'policy':<16}{'tok/s':>8}{'x plain':>9}{'regret':>8}{'parked':>8}{'probing':>8}  depths from 0, %"
            )
        ratio = result.tokens_per_second / reference["plain"].tokens_per_second
        logs.setdefault(result.policy.split(" ")[0], []).append(math.log(ratio))
        regret = 1.0 - result.tokens_per_second / reference["oracle"].tokens_per_second
        shares = [100.0 * result.depths.get(d, 0) / result.rounds for d in range(max(result.depths) + 1)]
        print(
            f"  {result.policy:<16}{result.tokens_per_second:>8.1f}{ratio:>9.3f}{regret:>8.1%}{result.parked:>8.1%}"
            f"{result.probing:>8.1%}  {' '.join(f'{share:.0f}' for share in shares)}"
        )
    if len({result.ladder for _, result in results}) > 1:
        print("\nGeometric mean of x plain over the ladders (simulated)")
        for name, values in sorted(logs.items(), key=lambda pair: -sum(pair[1])):
            print(f"  {name:<16}{math.exp(sum(values) / len(values)):>8.3f}")


def main() -> int:
    """``python -m macspec.scheduler.simulate``."""
    parser = argparse.ArgumentParser(prog="macspec simulate", description="Replay depth rules over a recorded trace.")
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except MacspecError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
