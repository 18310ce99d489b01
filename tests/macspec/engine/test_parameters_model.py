"""Parameters inside speculation with the embedded pair: the same tokens at every depth, and a grammar that holds."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from macspec.api import Answer, collect
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, Grammar, SamplingParams
from macspec.scheduler import make_policy
from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import DepthPolicy
from macspec.scheduler.ladder import Ladder
from macspec_models.checkpoints import load_drafter
from macspec_models.embedded import drafter_folder
from parameter_sets import alone, combination

pytestmark = [pytest.mark.model, pytest.mark.slow]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "books"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
PROMPTS = (
    "Is the sea salty? Answer in one sentence.",
    "Count from one to ten.",
    "Rewrite in formal English: hey, can u send me that file asap?",
    "Give me a JSON list of two colours.",
)
ANSWER = 24
DEPTHS = ("3", "full", "auto")


def shipped_rule(name: str) -> DepthPolicy:
    """The rule behind ``auto``, with the prices of a machine on which rows are cheap enough to draft."""
    ladder = Ladder.single([1.0 + 0.1 * rows for rows in range(17)], draft=0.3)
    return make_policy(name, CostModel(ladder, adapt=False))


@pytest.fixture(scope="module")
def engine(smollm):
    return Engine(smollm, load_drafter(drafter_folder(), smollm), policy_factory=shipped_rule)


@pytest.fixture(scope="module")
def likely(engine) -> list[int]:
    """Tokens this model writes in answer to the prompts, each once."""
    found = [token for text in PROMPTS for token in answers(engine, "0", text, max_tokens=ANSWER)[0].tokens]
    return list(dict.fromkeys(token for token in found if token not in engine.target.eos))


def answers(engine: Engine, depth: str, text: str = PROMPTS[0], coupled: bool = False, **sampling: Any) -> list[Answer]:
    request = GenerationRequest(
        messages=({"role": "user", "content": text},),
        sampling=SamplingParams(**{"seed": 3, "max_tokens": ANSWER, **sampling}),
        depth=depth,
        coupled=coupled,
    )
    return collect(engine.generate(request))


def summary(found: list[Answer]) -> list[tuple[Any, ...]]:
    """What must not depend on the speculation."""
    return [(answer.tokens, answer.text, answer.finish_reason, answer.matched_stop, answer.seed) for answer in found]


@pytest.mark.parametrize("name", alone(range(40), 0, 1))
def test_every_parameter_alone(engine, likely, name):
    target = engine.target
    setting = alone(likely, min(target.eos), target.vocab_size)[name]
    plain = answers(engine, "0", **setting)
    for depth in DEPTHS:
        assert summary(answers(engine, depth, **setting)) == summary(plain)
    assert summary(answers(engine, "full", coupled=True, **setting)) == summary(plain)


@pytest.mark.parametrize("block", range(40))
def test_two_hundred_combinations(engine, likely, block):
    """Short answers to a few prompts, so that the prefix is known and 800 of them take minutes."""
    target = engine.target
    for seed in range(5 * block, 5 * block + 5):
        sampling = combination(seed, likely, min(target.eos), range(0, target.vocab_size, 2), most=10)
        text = PROMPTS[seed % len(PROMPTS)]
        plain = answers(engine, "0", text, **sampling)
        for depth in DEPTHS:
            assert summary(answers(engine, depth, text, **sampling)) == summary(plain), (seed, depth, sampling)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_satisfied_with_drafts_in_most_rounds(engine, temperature):
    options = {"grammar": Grammar("json_schema", json.dumps(SCHEMA)), "max_tokens": 120, "temperature": temperature}
    (plain,), (got,) = answers(engine, "0", **options), answers(engine, "full", **options)
    assert got.tokens == plain.tokens
    if got.finish_reason == "stop":
        jsonschema.validate(json.loads(got.text), SCHEMA)
    assert got.stats.parked_rounds < got.stats.rounds / 2
