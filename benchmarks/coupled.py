"""Do drafts that share the target's noise beat argmax drafts? Acceptance length of both at several temperatures.

    python -m benchmarks.coupled [--prompts 6] [--tokens 96] [--temperatures 0.3,0.7,1.0]

The text is the same either way; only how much of a draft the target agrees with differs. Full depth, paired by prompt
and seed. Prints one JSON object: tokens committed per round, and the geometric mean of the ratio coupled / argmax.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, SamplingParams

PROMPTS = (
    "Write a Python function that reverses a list.",
    "Explain why the sky is blue in a few sentences.",
    "Write a short story about a lighthouse keeper.",
    "List five healthy breakfasts.",
    "Rewrite in formal English: hey, can u send me that file asap?",
    "What is the capital of France, and what is it known for?",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="registry name or folder; default: the embedded model")
    parser.add_argument("--drafter", help="the drafter; default: the model's own")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperatures", default="0.3,0.7,1.0")
    options = parser.parse_args(arguments)
    engine = Engine.load(options.model, options.drafter)
    report: dict[str, Any] = {"model": engine.info()["model"], "drafter": engine.info()["drafter"], "results": {}}
    for temperature in map(float, options.temperatures.split(",")):
        pairs = [
            tuple(accepted(engine, text, temperature, options.tokens, coupled) for coupled in (False, True))
            for text in PROMPTS[: options.prompts]
        ]
        report["results"][str(temperature)] = {
            "argmax": round(sum(own for own, _ in pairs) / len(pairs), 3),
            "coupled": round(sum(own for _, own in pairs) / len(pairs), 3),
            "ratio": round(math.exp(sum(math.log(b / a) for a, b in pairs) / len(pairs)), 3),
        }
    print(json.dumps(report, indent=2))


def accepted(engine: Engine, text: str, temperature: float, tokens: int, coupled: bool) -> float:
    """Tokens committed per round."""
    request = GenerationRequest(
        messages=({"role": "user", "content": text},),
        sampling=SamplingParams(temperature=temperature, seed=1, max_tokens=tokens, ignore_eos=True),
        depth="full",
        coupled=coupled,
    )
    return collect(engine.generate(request))[0].stats.acceptance_length


if __name__ == "__main__":
    main()
