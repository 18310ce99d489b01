"""What a reduced draft head saves and loses: draft milliseconds and acceptance length, whole head against row counts.

Every arm drafts at the same positions of the target's own held-out greedy answers, arms taking turns so that drift of
the machine hits all alike. The text is known, so nothing is verified and acceptance is exact. Usage:

    python benchmarks/draft_head.py [--target FOLDER --drafter FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx
import numpy as np

from macspec_models import embedded
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.frequency import EMBEDDED_COUNTS, TokenCounts, read_counts
from macspec_models.target import Target
from macspec_models.training.responses import DATA, load_examples


def greedy_answers(tokenizer: Any, count: int) -> list[Any]:
    """Held-out examples whose answers the target gave at temperature 0."""
    with np.load(DATA / "responses.npz") as stored:
        greedy = {int(line) for line, t in zip(stored["prompt"], stored["temperature"], strict=True) if t == 0}
    found = [e for e in load_examples(tokenizer) if e.held_out and e.line in greedy]
    return found[:count]


def accepted(draft: list[int], truth: list[int]) -> int:
    """Length of the equal prefix."""
    for place, (one, two) in enumerate(zip(draft, truth, strict=False)):
        if one != two:
            return place
    return min(len(draft), len(truth))


def measure(target: Target, arms: dict[int, Any], examples: list[Any], stride: int) -> dict[int, dict[str, float]]:
    """Median draft milliseconds and mean acceptance length of every arm; key 0 is the whole head."""
    times: dict[int, list[float]] = {size: [] for size in arms}
    lengths: dict[int, list[int]] = {size: [] for size in arms}
    turn = 0
    for example in examples:
        tokens = example.tokens.tolist()
        any_arm = next(iter(arms.values()))
        target.forward(mx.array([tokens]), target.make_cache())
        features = target.features()
        context, done = any_arm.new_context(), 0
        for position in range(example.prompt_length, len(tokens) - 1, stride):
            any_arm.extend(context, features[done:position])
            done = position
            mx.eval(context.arrays())
            order = list(arms)
            for size in order[turn % len(order) :] + order[: turn % len(order)]:
                begin = time.perf_counter()
                block = arms[size].draft(context, tokens[position], tokens[: position + 1])
                mx.eval(block.tokens, block.confidence)
                times[size].append((time.perf_counter() - begin) * 1e3)
                lengths[size].append(1 + accepted(block.tokens.tolist(), tokens[position + 1 :]))
            turn += 1
    return {
        size: {
            "draft_ms": round(statistics.median(times[size]), 3),
            "acceptance_length": round(statistics.mean(lengths[size]), 4),
            "drafts": len(times[size]),
        }
        for size in arms
    }


def main() -> None:
    """Measure and print; ``--json`` keeps the figures with the machine named."""
    parser = argparse.ArgumentParser(description="Measure reduced draft heads.")
    parser.add_argument("--target", type=Path, help="default: the embedded model")
    parser.add_argument("--drafter", type=Path, help="default: the embedded one")
    parser.add_argument("--counts", type=Path, default=EMBEDDED_COUNTS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--stride", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    target = Target.load(options.target or embedded.target_folder(), dtype="float32")
    drafter = options.drafter or embedded.drafter_folder()
    counts = TokenCounts(target.vocab_size, read_counts(options.counts))
    arms = {0: load_drafter(drafter, target)}
    for size in options.sizes:
        arms[size] = load_drafter(drafter, target, head_rows=counts.rows(size, target.eos))
    target.set_taps(arms[0].taps)
    results = measure(target, arms, greedy_answers(target.tokenizer, options.answers), options.stride)
    for size, row in results.items():
        print(f"{size or 'whole':>6} rows: {row['draft_ms']:.2f} ms, acceptance length {row['acceptance_length']:.3f}")
    if options.json:
        machine = {"system": platform.platform(), "processor": platform.processor()}
        options.json.write_text(json.dumps({"results": results, "machine": machine}, indent=1))


if __name__ == "__main__":
    main()
