"""Drafters of one target against each other: what they get accepted, what a draft costs, and that no text changes.

    python -m benchmarks.drafters FOLDER [FOLDER …] [--model NAME] [--tokens 64] [--equality 32] [--json FILE]

Each name is a registry name, a folder or a hub id; ``own`` is the model's own drafter. All draft at the same places of
the target's greedy answers (acceptance length: tokens per round at full depth, bonus included). Then every drafter
answers some prompts at full depth, greedy and at temperature 0.8, and the texts must be those of plain decoding.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import numpy as np

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.quantize_command import PROMPTS
from macspec.request import GenerationRequest, SamplingParams
from macspec_models import embedded, hub
from macspec_models.acceptance import greedy_texts, measure
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.interface import Drafter
from macspec_models.target import Target

TEMPERATURES = (0.0, 0.8)


def texts(target: Target, drafter: Drafter | None, tokens: int) -> list[list[int]]:
    """Token ids of answers to the first prompts."""
    engine = Engine(target, drafter)
    found = []
    for temperature in TEMPERATURES:
        for prompt in PROMPTS[:3]:
            request = GenerationRequest(
                messages=({"role": "user", "content": prompt},),
                depth="full" if drafter else "0",
                sampling=SamplingParams(temperature=temperature, seed=1, max_tokens=tokens),
            )
            found.append(list(collect(engine.generate(request))[0].tokens))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafters", nargs="+", metavar="FOLDER")
    parser.add_argument("--model", default=embedded.NAME, help="registry name or folder (default: the embedded model)")
    parser.add_argument("--tokens", type=int, default=64, help="length of the answers drafted along")
    parser.add_argument("--equality", type=int, default=32, help="length of the answers compared, 0 for none")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    target = Target.load(hub.resolve(options.model))
    # All score the same tokens, as the embedded pair does at work.
    own = options.model == embedded.NAME
    rows: np.ndarray[Any, Any] | None = embedded.frequent_tokens(embedded.HEAD_ROWS) if own else None
    folders = {name: hub.resolve(options.model if name == "own" else name, part="drafter") for name in options.drafters}
    loaded = {name: load_drafter(folder, target, head_rows=rows) for name, folder in folders.items()}
    found = measure(target, loaded, greedy_texts(target, PROMPTS, options.tokens))
    for name, row in found.items():
        survival = " ".join(f"{value:.2f}" for value in row.survival)
        print(
            f"{name} ({loaded[name].kind}): acceptance length {row.length:.3f} over {row.drafts} drafts, "
            f"draft {row.draft_ms:.1f} ms, survival {survival}",
            flush=True,
        )
    differ: dict[str, int] = {}
    if options.equality:
        plain = texts(target, None, options.equality)
        for name, drafter in loaded.items():
            others = texts(target, drafter, options.equality)
            differ[name] = sum(one != two for one, two in zip(plain, others, strict=True))
            print(f"{name}: {differ[name]} of {len(plain)} texts differ from plain decoding", flush=True)
    if options.json:
        rows_found = {name: {"kind": loaded[name].kind, **asdict(row)} for name, row in found.items()}
        machine = {"system": platform.platform(), "processor": platform.processor()}
        report = {"machine": machine, "model": options.model, "drafters": rows_found, "texts_differ": differ}
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
