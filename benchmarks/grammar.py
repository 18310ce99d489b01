"""How much of a draft is accepted under a JSON schema, beside the same prompts without one?

    python -m benchmarks.grammar [--schemas 40] [--tokens 96] [--temperatures 0,1]

Each of the schemas of the tests (nested, enumerated, bounded, recursive, keys in several scripts) is asked for once
with the schema as a constraint and once as a mere wish in the prompt, at full depth. Prints one JSON object: tokens per
round of both, the share of constrained rounds that verified a draft, and how many complete answers validate (all of
them, or it ends with status 1).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

import macspec_models  # noqa: F401  (loads a fast BLAS, which must come before MLX)

# isort: split
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, Grammar, Round, SamplingParams

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from json_schemas import SCHEMAS


@dataclass
class Counts:
    """Totals over answers."""

    tokens: int = 0
    rounds: int = 0
    #: Rounds that verified at least one draft token.
    drafted: int = 0
    complete: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens per round."""
        return self.tokens / self.rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="registry name or folder; default: the embedded model")
    parser.add_argument("--drafter", help="the drafter; default: the model's own")
    parser.add_argument("--schemas", type=int, default=len(SCHEMAS), help="how many of them")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--temperatures", default="0,1")
    options = parser.parse_args(arguments)
    engine = Engine.load(options.model, options.drafter)
    report: dict[str, Any] = {"model": engine.info()["model"], "drafter": engine.info()["drafter"], "results": {}}
    wrong = 0
    for temperature in map(float, options.temperatures.split(",")):
        bound, free, valid = Counts(), Counts(), 0
        for schema in SCHEMAS[: options.schemas]:
            text = answer(engine, schema, temperature, options.tokens, bound, constrained=True)
            answer(engine, schema, temperature, options.tokens, free, constrained=False)
            valid += text is not None and validates(text, schema)
        wrong += bound.complete - valid
        report["results"][str(temperature)] = {
            "acceptance_length": round(bound.acceptance_length, 3),
            "acceptance_length_unconstrained": round(free.acceptance_length, 3),
            "rounds": bound.rounds,
            "share_of_rounds_with_a_draft": round(bound.drafted / bound.rounds, 3),
            "answers": min(options.schemas, len(SCHEMAS)),
            "complete": bound.complete,
            "valid": valid,
        }
    print(json.dumps(report, indent=2))
    return 1 if wrong else 0


def answer(
    engine: Engine, schema: dict[str, Any], temperature: float, tokens: int, counts: Counts, *, constrained: bool
) -> str | None:
    """One answer, added to ``counts``; its text if it is complete."""
    wish = f"Give me an example of JSON that fits this schema: {json.dumps(schema, ensure_ascii=False)}"
    grammar = Grammar("json_schema", json.dumps(schema)) if constrained else None
    request = GenerationRequest(
        messages=({"role": "user", "content": wish},),
        sampling=SamplingParams(temperature=temperature, seed=1, max_tokens=tokens, grammar=grammar),
        depth="full",
    )
    events = list(engine.generate(request))
    rounds = [event for event in events if isinstance(event, Round)]
    found = collect(iter(events))[0]
    counts.tokens += len(found.tokens)
    counts.rounds += len(rounds)
    counts.drafted += sum(event.verified > 0 for event in rounds)
    if found.finish_reason != "stop":
        return None
    counts.complete += 1
    return found.text


def validates(text: str, schema: dict[str, Any]) -> bool:
    """Whether the text is JSON that satisfies the schema; tells if not."""
    try:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"{text!r} does not satisfy {schema}: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
