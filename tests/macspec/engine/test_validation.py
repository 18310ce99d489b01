"""Wrong sampling parameters are refused before any work, with the field's name in a sentence."""

from __future__ import annotations

import dataclasses
import math

import pytest

from macspec.engine.validation import check_abilities, check_sampling
from macspec.errors import RequestError, UnsupportedError
from macspec.request import GenerationRequest, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, math.nan) for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")],
        ("frequency_penalty", math.inf),
        ("temperature", -0.1),
        ("temperature", 1e-5),
        ("temperature", 1e9),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", -1.0),
        ("top_k", -1),
        ("top_k", 2.0),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("presence_penalty", -11.0),
        ("frequency_penalty", 10.5),
        ("penalty_window", -1),
        ("seed", 2**64),
        ("seed", 1.5),
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {5: 101.0}),
        ("banned_tokens", (100,)),
        ("banned_tokens", tuple(range(100))),
        ("allowed_tokens", ()),
        ("allowed_tokens", (-5,)),
        ("stop_token_ids", (1000,)),
        ("min_tokens", -1),
        ("min_tokens", 65),
        ("max_tokens", 0),
        ("max_tokens", 65),
        ("stop", ("a", "")),
        ("stop", "text"),
        ("logprobs", -1),
        ("logprobs", 21),
        ("n", 0),
        ("n", 1000),
    ],
)
def test_refused(field, value):
    with pytest.raises(RequestError) as raised:
        check_sampling(SamplingParams(**{field: value}), 100, 64)
    assert raised.value.param == field
    assert field in raised.value.message
    assert raised.value.message.endswith(".")


def test_contradictions():
    for sampling, param in [
        (SamplingParams(min_tokens=9, max_tokens=8), "min_tokens"),
        (SamplingParams(allowed_tokens=(1, 2), banned_tokens=(2, 1)), "allowed_tokens"),
    ]:
        with pytest.raises(RequestError) as raised:
            check_sampling(sampling, 100, 64)
        assert raised.value.param == param


def test_accepted():
    check_sampling(SamplingParams(), 100, 64)
    check_sampling(
        SamplingParams(
            temperature=1,
            top_p=1e-3,
            top_k=1000,
            min_p=1.0,
            seed=-1,
            repetition_penalty=0.5,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            penalty_window=64,
            logit_bias={0: -100.0, 99: 100.0},
            banned_tokens=(3,),
            allowed_tokens=(3, 4),
            min_tokens=64,
            max_tokens=64,
            stop=("a",),
            stop_token_ids=(99,),
            ignore_eos=True,
            logprobs=20,
            n=64,
        ),
        100,
        64,
    )


def test_every_field_is_looked_at_or_free_to_be_anything():
    looked_at = {case[0] for mark in test_refused.pytestmark for case in mark.args[1]}
    assert {field.name for field in dataclasses.fields(SamplingParams)} - looked_at == {"ignore_eos", "grammar"}


class Tokenizer:
    """What a model says it can do."""

    def __init__(self, *, thinks: bool = False, calls: bool = False) -> None:
        self.has_thinking, self.has_tool_calling = thinks, calls
        self.think_start_tokens, self.think_end_tokens = (1,), (2,)
        self.all_special_ids = [0]

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0}


ASK = {"messages": ({"role": "user", "content": "hi"},)}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}


@pytest.mark.parametrize(
    ("name", "options"),
    [("thinking", {"thinking": True}), ("thinking_budget", {"thinking_budget": 8}), ("tools", {"tools": (TOOL,)})],
)
def test_what_the_model_cannot_do_is_refused_by_name(name, options):
    request = GenerationRequest(**ASK, **options)
    with pytest.raises(UnsupportedError, match=f"leave {name} out") as raised:
        check_abilities(request, Tokenizer())
    assert raised.value.param == name
    check_abilities(request, Tokenizer(thinks=True, calls=True))


def test_not_to_think_is_always_possible():
    check_abilities(GenerationRequest(**ASK, thinking=False), Tokenizer())


@pytest.mark.parametrize("budget", [-1, True, 2.5])
def test_a_thinking_budget_that_is_no_number_of_tokens_is_refused(budget):
    with pytest.raises(RequestError) as raised:
        check_abilities(GenerationRequest(**ASK, thinking_budget=budget), Tokenizer(thinks=True))
    assert raised.value.param == "thinking_budget"


@pytest.mark.parametrize("given", [{"prompt": "hi"}, {"tokens": (1, 2)}])
@pytest.mark.parametrize(("name", "value"), [("thinking", True), ("template_options", {"date": "today"})])
def test_what_only_a_template_can_do_needs_messages(given, name, value):
    with pytest.raises(UnsupportedError) as raised:
        GenerationRequest(**given, **{name: value}).check()
    assert raised.value.param == name
    GenerationRequest(**ASK, **{name: value}).check()
