"""Simulates every depth rule over the shipped traces, invented rounds and every published ladder, and says who wins.

    python -m benchmarks.policies --json benchmarks/results/simulated-policies.json

Times come from ladders, acceptance from traces: nothing is measured here. ``informed`` knows every slot's true chance,
which only invented rounds can tell.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from macspec.bench.stats import geometric_mean
from macspec.scheduler.command import published_ladders
from macspec.scheduler.policies import COMPARED
from macspec.scheduler.simulate import simulate
from macspec.scheduler.synthetic import synthetic_trace
from macspec.scheduler.trace import Trace, read_trace

TRACES = Path(__file__).parent / "traces"
#: Bounds in hindsight; no rule that runs can know them.
BOUNDS = ("best-fixed", "informed", "oracle")
OURS = "rate"
#: Share of the speed of the informed rule that ours may miss.
ALLOWED = 0.06

#: Tokens per second relative to plain decoding, by ladder and rule.
Table = dict[str, dict[str, float]]


def traces() -> dict[str, Trace]:
    """The shipped ones by name, and invented rounds."""
    recorded = {path.stem: read_trace(path) for path in sorted(TRACES.glob("*.jsonl"))}
    return {**recorded, "synthetic": synthetic_trace()}


def table(trace: Trace) -> Table:
    """Every rule on every ladder."""
    known = all(item.chances for item in trace.rounds)
    names = [*COMPARED, *(name for name in BOUNDS if known or name != "informed")]
    made: Table = {}
    for ladder in published_ladders():
        speeds = {name: simulate(name, trace, ladder).tokens_per_second for name in names}
        made[ladder.name] = {name: round(speed / speeds["plain"], 4) for name, speed in speeds.items()}
    return made


def geometric_means(made: Table) -> dict[str, float]:
    """By rule, over the ladders; best first."""
    names = next(iter(made.values()))
    means = {name: geometric_mean([row[name] for row in made.values()]) for name in names}
    return {name: round(mean, 4) for name, mean in sorted(means.items(), key=lambda pair: -pair[1])}


def verdicts(made: Table) -> list[str]:
    """Sentences on what our rule has to hold: best of all on the mean, near the informed one, and where it loses."""
    means = geometric_means(made)
    others = {name: mean for name, mean in means.items() if name not in (OURS, *BOUNDS)}
    second = max(others, key=others.__getitem__)
    wins = "wins" if means[OURS] >= others[second] else "LOSES"
    said = [f"{OURS} {wins} on the geometric mean: {means[OURS]:.3f}, {second} {others[second]:.3f}"]
    if "informed" in means:
        share = means[OURS] / means["informed"]
        held = "within" if share >= 1.0 - ALLOWED else "NOT WITHIN"
        said.append(f"{OURS} has {share:.1%} of the informed rule's speed, {held} {ALLOWED:.0%}")
    for ladder, row in made.items():
        ahead = {name: row[name] for name in others if row[name] > row[OURS]}
        if ahead:
            names = ", ".join(f"{name} {value:.3f}" for name, value in ahead.items())
            said.append(f"ahead of {OURS} ({row[OURS]:.3f}) on {ladder}: {names}")
    return said


def show(name: str, made: Table) -> str:
    """A trace's table as text, a row per ladder, the mean last."""
    means = geometric_means(made)
    lines = [f"\n{name} (simulated, times plain decoding)", " " * 30 + "".join(f"{rule:>11}" for rule in means)]
    for ladder, row in {**made, "geometric mean": means}.items():
        lines.append(f"  {ladder:<28}" + "".join(f"{row[rule]:>11.3f}" for rule in means))
    return "\n".join([*lines, *("  " + sentence for sentence in verdicts(made))])


def main() -> None:
    """Print the tables, write them."""
    parser = argparse.ArgumentParser(description="Simulate every depth rule on every published ladder.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables")
    options = parser.parse_args()
    report = {}
    for name, trace in traces().items():
        made = table(trace)
        print(show(name, made), flush=True)
        report[name] = {
            "trace": {key: value for key, value in trace.header.items() if key != "ladder"},
            "rounds": len(trace.rounds),
            "simulated_to_plain": made,
            "geometric_mean": geometric_means(made),
            "verdicts": verdicts(made),
        }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
