"""Do drafts that share the target's noise beat argmax drafts? Acceptance length and speed of both, by temperature.

    python -m benchmarks.coupled [--prompts 3] [--seeds 2] [--tokens 96] [--temperatures 0.3,0.7,1.0]

The text is the same either way; only how much of a draft the target agrees with differs, and what the noise costs.
Full depth, held-out prompts, paired by prompt and seed, the order alternating. Prints one JSON object: tokens committed
per round with argmax drafts, and coupled / argmax as a geometric mean with its 95 % interval, for the acceptance length
and for the decode rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import macspec_models  # noqa: F401  (loads a fast BLAS, which must come before MLX)

# isort: split
from benchmarks.held_out import held_out_prompts
from macspec.api import collect
from macspec.bench.stats import Estimate, geometric_mean, paired_ratio
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, GenerationStats, SamplingParams

CATEGORIES = ("chat", "code", "explain", "rewrite")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="registry name or folder; default: the embedded model")
    parser.add_argument("--drafter", help="the drafter; default: the model's own")
    parser.add_argument("--prompts", type=int, default=3, help="per category")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperatures", default="0.3,0.7,1.0")
    options = parser.parse_args(arguments)
    engine = Engine.load(options.model, options.drafter)
    prompts = held_out_prompts(engine.target.tokenizer, CATEGORIES, options.prompts)
    report: dict[str, Any] = {"model": engine.info()["model"], "drafter": engine.info()["drafter"], "results": {}}
    for temperature in map(float, options.temperatures.split(",")):
        runs: dict[bool, list[list[GenerationStats]]] = {False: [], True: []}
        for number, (_, text) in enumerate(prompts):
            for arm in (False, True):
                runs[arm].append([])
            for seed in range(options.seeds):
                for arm in (False, True) if (number + seed) % 2 else (True, False):
                    runs[arm][-1].append(answer(engine, text, temperature, options.tokens, seed, coupled=arm))
        lengths = {arm: [[s.acceptance_length for s in row] for row in rows] for arm, rows in runs.items()}
        rates = {arm: [[s.generation_tps for s in row] for row in rows] for arm, rows in runs.items()}
        report["results"][str(temperature)] = {
            "argmax_acceptance_length": round(geometric_mean([s for row in lengths[False] for s in row]), 3),
            "acceptance": _ratio(paired_ratio(lengths[False], lengths[True])),
            "rate": _ratio(paired_ratio(rates[False], rates[True])),
        }
    print(json.dumps(report, indent=2))


def answer(engine: Engine, text: str, temperature: float, tokens: int, seed: int, *, coupled: bool) -> GenerationStats:
    """Figures of one answer."""
    request = GenerationRequest(
        messages=({"role": "user", "content": text},),
        sampling=SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True),
        depth="full",
        coupled=coupled,
    )
    return collect(engine.generate(request))[0].stats


def _ratio(estimate: Estimate) -> dict[str, float | list[float] | None]:
    interval = estimate.interval
    return {
        "ratio": round(estimate.value, 3),
        "interval": None if interval is None else [round(end, 3) for end in interval],
    }


if __name__ == "__main__":
    main()
