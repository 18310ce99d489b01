"""Parameters inside speculation with the embedded pair: the same tokens at every depth, and a grammar that holds."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from macspec.api import Answer, collect
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, Grammar, SamplingParams
from macspec_models.checkpoints import load_drafter
from macspec_models.embedded import drafter_folder

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
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature, top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k, min_p, bias": {"temperature": 1.0, "top_k": 20, "min_p": 0.02, "logit_bias": {28: 1.0, 30: -5.0}},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.3, "penalty_window": 64},
    "stop": {"stop": ("\n", "."), "min_tokens": 4},
    "regex": {"grammar": Grammar("regex", "(Yes|No), because [a-z ,]{10,40}\\."), "temperature": 0.7},
}


@pytest.fixture(scope="module")
def engines(smollm):
    drafter = load_drafter(drafter_folder(), smollm)
    # Two engines over one target: only taps differ, which the drafted one sets last.
    return Engine(smollm, None), Engine(smollm, drafter)


def answer(engine: Engine, depth: str, coupled: bool = False, **sampling: Any) -> Answer:
    request = GenerationRequest(
        messages=({"role": "user", "content": "Is the sea salty? Answer in one sentence."},),
        sampling=SamplingParams(**{"seed": 3, "max_tokens": 24, **sampling}),
        depth=depth,
        policy="adaedl",
        coupled=coupled,
    )
    return collect(engine.generate(request))[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_tokens_at_every_depth(engines, name):
    plain = answer(engines[0], "0", **SETTINGS[name])
    for depth in ("3", "full", "auto"):
        got = answer(engines[1], depth, **SETTINGS[name])
        assert (got.tokens, got.text, got.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
    coupled = answer(engines[1], "full", coupled=True, **SETTINGS[name])
    assert coupled.tokens == plain.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_satisfied_with_drafts_in_most_rounds(engines, temperature):
    options = {"grammar": Grammar("json_schema", json.dumps(SCHEMA)), "max_tokens": 120, "temperature": temperature}
    plain, got = answer(engines[0], "0", **options), answer(engines[1], "full", **options)
    assert got.tokens == plain.tokens
    if got.finish_reason == "stop":
        jsonschema.validate(json.loads(got.text), SCHEMA)
    assert got.stats.parked_rounds < got.stats.rounds / 2
