"""Which model families are exact: generates with and without speculation on tiny random models of the mlx-lm classes.

``python tests/families.py docs/families.md`` writes the table; without a file it prints it. The reference BLAS is used,
whose row results do not depend on the number of rows, so that a difference is a defect and not rounding.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["MACSPEC_BLAS"] = "reference"

import mlx.core as mx
from mlx import nn

from fake_drafters import FakeDrafter, oracle_drafter, random_drafter
from macspec.api import collect
from macspec.engine.caches import TargetCache
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest
from macspec.scheduler import make_policy
from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import Decision, DepthPolicy, RoundOutcome, RoundState
from macspec.scheduler.ladder import Ladder
from macspec_models.target import Target
from tiny_engine import ask, random_prompt, tiny_target
from tiny_models import FAMILIES, VOCAB

PROMPT = 23
#: Weight formats: name to arguments of `mlx.nn.quantize`.
FORMATS: dict[str, dict[str, Any]] = {
    **{f"{bits}-bit": {"bits": bits, "group_size": 32} for bits in (2, 3, 4, 5, 6, 8)},
    "mxfp4": {"mode": "mxfp4", "group_size": 32, "bits": 4},
    "mxfp8": {"mode": "mxfp8", "group_size": 32, "bits": 8},
    "nvfp4": {"mode": "nvfp4", "group_size": 16, "bits": 4},
}
#: Sizes every format's groups divide.
WIDE = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}


class RandomDepth:
    """Parks, drafts and truncates at random."""

    name = "random"
    needs_confidence = True

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth if self.random.random() < 0.8 else 0

    def choose(self, state: RoundState) -> Decision:
        return Decision(self.random.randint(0, state.max_depth), "random")

    def observe(self, outcome: RoundOutcome) -> None:
        pass


@dataclass(frozen=True)
class Result:
    """What one target did: cache kinds, tokens compared per schedule, and the first difference or None."""

    caches: str
    rollback: str
    compared: int
    schedules: int
    difference: str | None


def answer(target: Target, drafter: FakeDrafter | None, request: GenerationRequest, policy: Any = None) -> list[int]:
    """Tokens of one answer by an engine of its own."""
    engine = Engine(target, drafter, prefill_chunk=8, policy_factory=policy)
    return list(collect(engine.generate(request))[0].tokens)


def measure(target: Target, tokens: int, seed: int = 0) -> Result:
    """Compare plain decoding with three drafters at full, automatic and random depths."""
    prompt = random_prompt(PROMPT, VOCAB, seed)
    plain = answer(target, None, ask(prompt, "0", max_tokens=tokens, ignore_eos=True))
    schedules: dict[str, tuple[FakeDrafter, str, Any]] = {
        "a drafter that is never right, full depth": (random_drafter(VOCAB), "full", None),
        "a drafter that errs every 4th token, full depth": (_oracle(plain, 4), "full", None),
        "a drafter that errs every 7th token, automatic depth": (_oracle(plain, 7), "auto", _by_cost),
        "a drafter that errs every 5th token, random depth": (
            _oracle(plain, 5),
            "auto",
            lambda name: RandomDepth(seed),
        ),
    }
    difference = None
    for name, (drafter, depth, policy) in schedules.items():
        got = answer(target, drafter, ask(prompt, depth, max_tokens=tokens, ignore_eos=True), policy)
        if got != plain:
            place = next((n for n, (a, b) in enumerate(zip(got, plain, strict=False)) if a != b), len(got))
            difference = difference or f"token {place} with {name}"
    cache = TargetCache(target.make_cache())
    kinds = sorted({type(leaf.cache).__name__ for leaf in cache._leaves})
    return Result(", ".join(kinds), _rollback(target, cache), tokens, len(schedules), difference)


def _rollback(target: Target, cache: TargetCache) -> str:
    """How a target that engines were made of keeps part of a pass."""
    cache.begin(3)
    target.forward(mx.array([[1, 2, 3]]), cache.layers)
    cache.commit(2, lambda rows: mx.eval(target.forward(mx.array([[1, 2, 3][:rows]]), cache.layers)))
    if cache.replayed_rows:
        return "replay of the accepted rows"
    return "recurrent layers step on from records" if cache.recurrent else "shorter caches"


def quantized_target(family: str, form: str) -> Target:
    """A tiny target with every linear layer it can quantise in the format."""
    target = tiny_target(family, **WIDE)
    options = FORMATS[form]

    def fits(path: str, module: Any) -> bool:
        weight = getattr(module, "weight", None)
        return hasattr(module, "to_quantized") and weight is not None and weight.shape[-1] % options["group_size"] == 0

    nn.quantize(target.model, class_predicate=fits, **options)
    return Target(target.model, target.tokenizer, target.config, f"{family}-{form}")


def _by_cost(name: str) -> DepthPolicy:
    """The shipped rule, with the prices of a machine on which rows cost something."""
    ladder = Ladder.single([1.0 + 0.1 * rows for rows in range(8)], draft=0.3)
    return make_policy(name, CostModel(ladder, adapt=False))


def _at_random(name: str) -> DepthPolicy:
    return RandomDepth(0)


def _oracle(plain: Sequence[int], wrong_every: int) -> FakeDrafter:
    return oracle_drafter(plain, PROMPT, wrong_every=wrong_every)


def table(tokens: int) -> str:
    """The document."""
    lines = [
        "# Model families",
        "",
        "Each row: a tiny random float32 model of the mlx-lm class generates "
        f"{tokens} tokens greedily, plainly and with speculation under four schedules (drafters that are never, mostly "
        "and nearly always right; full, automatic and random depth). *Exact* means that every token agreed. Written by",
        "`python tests/families.py docs/families.md`.",
        "",
        "| family | caches | partial rollback | result |",
        "|---|---|---|---|",
    ]
    for family in FAMILIES:
        lines.append(_line(family, measure(tiny_target(family), tokens)))
    lines += [
        "",
        "Weights in other formats:",
        "",
        "| family | format | caches | partial rollback | result |",
        "|---|---|---|---|---|",
    ]
    for form in FORMATS:
        for family in ("qwen3", "qwen3_moe", "qwen3_5"):
            lines.append(_line(f"{family} | {form}", measure(quantized_target(family, form), tokens // 3)))
    lines += [
        "",
        "A model whose cache is of another kind is refused at load, by the name of the cache.",
        "",
    ]
    return "\n".join(lines)


def _line(name: str, result: Result) -> str:
    outcome = (
        f"exact ({result.schedules} × {result.compared} tokens)" if result.difference is None else result.difference
    )
    print(name, outcome, file=sys.stderr, flush=True)
    return f"| {name} | {result.caches} | {result.rollback} | {outcome} |"


if __name__ == "__main__":
    text = table(300)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text)
