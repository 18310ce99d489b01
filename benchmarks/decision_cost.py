"""Microseconds of processor time a depth decision takes: asking, choosing and learning, per round.

python benchmarks/decision_cost.py
"""

from __future__ import annotations

import json
import platform
import statistics
import time

from macspec.scheduler import CostModel, Ladder, make_policy
from macspec.scheduler.interface import RoundOutcome, RoundState
from macspec.scheduler.synthetic import synthetic_trace

SLOTS = (7, 15)
ROUNDS = 4000
POLICIES = ("rate", "dcut", "dspark", "specdec++", "adaedl", "ewma", "fixed:4")


def measure(name: str, slots: int) -> dict[str, float]:
    """Median, mean and 99th percentile of a round's decision, and the median of choosing alone."""
    ladder = Ladder.single([20.0 + 1.5 * row for row in range(slots + 1)], 3.0)
    policy = make_policy(name, CostModel(ladder))
    whole, chosen = [], []
    for number, item in enumerate(synthetic_trace(ROUNDS, slots=slots).rounds):
        context = 3 * number
        begin = time.thread_time_ns()
        drafts = policy.draft_limit(RoundState(slots, context))
        state = RoundState(drafts, context, 0.0, item.confidence[:drafts])
        asked = time.thread_time_ns()
        depth = policy.choose(state).depth
        answered = time.thread_time_ns()
        kept = min(depth, item.accepted)
        outcome = RoundOutcome(
            depth, kept, kept + 1, drafts, context, 3.0 * (drafts > 0), 20.0 + 1.5 * depth, 0.1, 0.0, state.confidence
        )
        ready = time.thread_time_ns()
        policy.observe(outcome)
        learned = time.thread_time_ns()
        chosen.append((answered - asked) / 1000.0)
        whole.append((answered - begin + learned - ready) / 1000.0)
    mean = statistics.fmean(whole)
    whole.sort()
    return {
        "choose_us": round(statistics.median(chosen), 2),
        "round_us": round(statistics.median(whole), 2),
        "round_mean_us": round(mean, 2),
        "round_p99_us": round(whole[int(0.99 * len(whole))], 2),
    }


def main() -> None:
    """Print one JSON line per rule and block."""
    print(json.dumps({"machine": platform.processor() or platform.machine(), "python": platform.python_version()}))
    for slots in SLOTS:
        for name in POLICIES:
            print(json.dumps({"policy": name, "slots": slots, **measure(name, slots)}))


if __name__ == "__main__":
    main()
