"""``macspec simulate``: replay depth rules over a recorded trace and any cost ladder. All it prints is simulated."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from macspec.scheduler.calibration import calibration
from macspec.scheduler.ladder import Ladder, LadderError
from macspec.scheduler.policies import COMPARED
from macspec.scheduler.simulate import Result, simulate
from macspec.scheduler.synthetic import synthetic_trace
from macspec.scheduler.trace import Trace, read_trace

#: A rule's result with those it is measured against.
Compared = tuple[dict[str, Result], Result]


def ladder_directory() -> Path:
    """Where the published ladders lie in a checkout."""
    return Path(__file__).resolve().parents[2] / "benchmarks" / "ladders"


def published_ladders() -> list[Ladder]:
    """Every ladder in `ladder_directory`, by name."""
    return [Ladder.read(path) for path in sorted(ladder_directory().glob("*.json"))]


def find_ladders(choice: str, trace: Trace) -> list[Ladder]:
    """The ladders meant by ``all``, ``self``, a file or a published name; raises `LadderError` when there is none."""
    if choice == "all":
        found = published_ladders()
        if not found:
            raise LadderError(f"There are no published ladders at {ladder_directory()}; give a file with --ladder.")
        return found
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
    parser.add_argument(
        "trace", help="a trace recorded with macspec bench --trace FILE, or synthetic for invented rounds"
    )
    parser.add_argument(
        "--ladder", default="self", metavar="NAME", help="self, all, a file or a published ladder (default: self)"
    )
    parser.add_argument("--policy", default="rate", metavar="NAME", help="all, or names separated by commas")
    parser.add_argument("--noise", type=float, default=0.0, help="relative spread of every time (default: 0)")
    parser.add_argument("--calibration", action="store_true", help="print the calibration error of survival instead")
    parser.add_argument("--predictor", type=Path, metavar="FILE", help="trained network of the policy dscale")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run `macspec simulate`; returns the exit code."""
    trace = synthetic_trace() if args.trace == "synthetic" else read_trace(Path(args.trace))
    if args.calibration:
        return _calibration(trace, as_json=args.json)
    every = [*COMPARED, "dscale"] if args.predictor else list(COMPARED)
    names = every if args.policy == "all" else [name.strip() for name in args.policy.split(",")]
    bounds = ["best-fixed", "oracle"]
    if all(item.chances for item in trace.rounds):
        bounds.insert(1, "informed")
    results: list[Compared] = []
    for ladder in find_ladders(args.ladder, trace):
        reference = {name: simulate(name, trace, ladder) for name in ("plain", *bounds)}
        known = {} if args.noise else reference
        results += [
            (reference, known.get(name) or simulate(name, trace, ladder, noise=args.noise, predictor=args.predictor))
            for name in names
        ]
        results += [(reference, reference[name]) for name in bounds]
    if args.json:
        print(json.dumps([_values(*pair) for pair in results], indent=1))
    else:
        _print(trace, results)
    return 0


def _calibration(trace: Trace, *, as_json: bool) -> int:
    found = calibration(trace)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"Expected calibration error of survival over {found.rounds} rounds, after {found.learned_before} to learn "
            f"from: {found.error:.3f} (the drafter's raw probabilities: {found.raw_error:.3f})"
        )
    return 0


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
    cut = f" ({trace.censored} cut ones left out)" if trace.censored else ""
    print(f"Simulated: {len(trace.rounds)} rounds{cut}")
    ladder = ""
    logs: dict[str, list[float]] = {}
    for reference, result in results:
        if result.ladder != ladder:
            ladder = result.ladder
            print(f"\n{ladder}: plain {reference['plain'].tokens_per_second:.1f} tok/s")
            print(
                f"  {'policy':<16}{'tok/s':>8}{'x plain':>9}{'regret':>8}{'parked':>8}{'probing':>8}  depths from 0, %"
            )
        values = _values(reference, result)
        logs.setdefault(result.policy.split(" ")[0], []).append(math.log(values["to_plain"]))
        shares = [100.0 * result.depths.get(d, 0) / result.rounds for d in range(max(result.depths) + 1)]
        print(
            f"  {result.policy:<16}{result.tokens_per_second:>8.1f}{values['to_plain']:>9.3f}{values['regret']:>8.1%}"
            f"{result.parked:>8.1%}{result.probing:>8.1%}  {' '.join(f'{share:.0f}' for share in shares)}"
        )
    if len({result.ladder for _, result in results}) > 1:
        print("\nGeometric mean of x plain over the ladders (simulated)")
        for name, values_ in sorted(logs.items(), key=lambda pair: -sum(pair[1])):
            print(f"  {name:<16}{math.exp(sum(values_) / len(values_)):>8.3f}")
