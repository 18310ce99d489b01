"""What sampling parameters cost: their share of a verification round, measured on this machine.

    python -m benchmarks.processors [--model FOLDER] [--rows 4] [--repeats 30]

A round is one forward pass over ``rows`` rows on a context of some 350 tokens, and the greedy choice. Every setting
is timed on the logits of the same pass, in turn, so that a busy machine slows them alike; medians are reported, in
milliseconds, and as a share of the round that the setting adds. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import macspec_models  # noqa: F401  (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx

from macspec.engine.sampling import Chooser
from macspec.request import Grammar, SamplingParams
from macspec_models.embedded import target_folder
from macspec_models.target import Target

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "year": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["title", "year", "tags"],
        "additionalProperties": False,
    }
)
#: Text that the schema's answer begins with; the draft goes on from there.
BEGINNING, DRAFT = '{"title": "The old', " house by the sea and the"
TEXT = (
    "In the village by the sea there was a house that nobody had lived in for many years. The children said that at "
    "night a light went from window to window, and the old people said nothing at all. One summer a woman came from "
    "the city with two suitcases and a cat, opened every shutter, and began to write. She wrote in the morning, when "
    "the fishermen came back, and in the evening, when the lamps were lit, and in between she asked everyone she met "
    "what they remembered of the family that had built the house. "
) * 3
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "top_k, top_p, min_p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "repetition": {"repetition_penalty": 1.1},
    "three penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2},
    "bias, min_tokens": {"logit_bias": {5: 1.0, 9: -2.0}, "min_tokens": 100},
    "json_schema": {"grammar": Grammar("json_schema", SCHEMA)},
    "all together": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "grammar": Grammar("json_schema", SCHEMA),
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder in mlx-lm's layout; default: the embedded model")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args(arguments)
    target = Target.load(options.model or target_folder())
    print(json.dumps(measure(target, options.rows, options.repeats), indent=2))


def measure(target: Target, rows: int, repeats: int) -> dict[str, Any]:
    """Times of every setting; see the module's text."""
    tokenizer = target.tokenizer
    beginning = tokenizer.encode(BEGINNING, add_special_tokens=False)
    draft = tokenizer.encode(DRAFT, add_special_tokens=False)[: rows - 1]
    prompt = tokenizer.encode(f"{TEXT}\n\nA catalogue entry as JSON:\n", add_special_tokens=False)
    context = len(prompt) + len(beginning)
    choosers = {}
    for name, setting in SETTINGS.items():
        params = SamplingParams(**setting)
        choosers[name] = Chooser(params, target.vocab_size, tokenizer, prompt, 1, target.eos)
        choosers[name].commit(beginning)
    cache = target.make_cache()
    mx.eval(target.forward(mx.array([prompt + beginning[:-1]]), cache))
    fed = mx.array([[beginning[-1], *draft]])
    times: dict[str, list[float]] = {name: [] for name in ("forward", *SETTINGS)}
    for repeat in range(repeats + 2):
        start = time.perf_counter()
        logits = target.forward(fed, cache)[0]
        mx.eval(logits)
        spent = {"forward": time.perf_counter() - start}
        for layer in cache:
            layer.trim(fed.shape[1])
        for name, chooser in choosers.items():
            spent[name] = _timed(chooser, logits, context, draft)
        if repeat >= 2:
            for name, seconds in spent.items():
                times[name].append(1e3 * seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    round_ms = medians["forward"] + medians["greedy"]
    return {
        "machine": {"system": platform.system(), "processor": platform.machine(), "device": str(mx.default_device())},
        "model": target.name,
        "vocab": target.vocab_size,
        "rows": rows,
        "context": context,
        "round_ms": round(round_ms, 3),
        "choose_ms": {name: round(medians[name], 3) for name in SETTINGS},
        "added_share": {
            name: round((medians[name] - medians["greedy"]) / round_ms, 4) for name in SETTINGS if name != "greedy"
        },
    }


def _timed(chooser: Chooser, logits: mx.array, position: int, draft: Sequence[int]) -> float:
    start = time.perf_counter()
    chooser.choose(logits, position, draft).tolist()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
