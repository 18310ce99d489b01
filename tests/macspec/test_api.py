"""The Python interface: what a request can be made of, and what is refused before any work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import macspec
from macspec.errors import RequestError
from macspec.request import Event, Finished, GenerationRequest, Grammar, SamplingParams, Started, Text, TokenInfo


class Echo:
    """An engine that keeps what it is asked and answers with one word per answer."""

    def __init__(self) -> None:
        self.asked: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest) -> Iterator[Event]:
        request.check()
        self.asked.append(request)
        for index in range(request.sampling.n):
            yield Started(index, seed=index)
            yield Text(index, text=f"word {index}", tokens=(TokenInfo(index),))
            yield Finished(index, reason="stop")


def ask(request: Any, **fields: Any) -> GenerationRequest:
    engine: Any = Echo()
    macspec.generate(engine, request, **fields)
    return engine.asked[0]


def test_fields_of_both_kinds_make_a_request_of_a_text() -> None:
    made = ask("hi", temperature=0.5, seed=3, depth="full", policy="dcut", thinking=False)
    assert made.messages == ({"role": "user", "content": "hi"},)
    assert (made.sampling.temperature, made.sampling.seed) == (0.5, 3)
    assert (made.depth, made.policy, made.thinking) == ("full", "dcut", False)
    assert ask("hi", depth=2).depth == "2"


def test_messages_and_whole_requests() -> None:
    conversation = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    assert ask(conversation, max_tokens=4).messages == tuple(conversation)
    whole = GenerationRequest(prompt="as it is")
    assert ask(whole) is whole
    with pytest.raises(TypeError, match="temperature belongs into the GenerationRequest"):
        ask(whole, temperature=1.0)


def test_every_answer_is_collected() -> None:
    engine: Any = Echo()
    found = macspec.answers(engine, "hi", n=3)
    assert [(answer.text, answer.seed, answer.tokens) for answer in found] == [
        ("word 0", 0, [0]),
        ("word 1", 1, [1]),
        ("word 2", 2, [2]),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("temprature", "no parameter 'temprature'; did you mean 'temperature'"),
        ("zzz", "no parameter 'zzz'$"),
        ("prompt", "no parameter 'prompt'"),
    ],
)
def test_an_unknown_parameter_is_named(name: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ask("hi", **{name: 1})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stop": "END"}, "stop is 'END'; use a list of texts."),
    ({"stop": 5}, "stop is 5; use a list of texts."),
    ({"stop": ("a", 1)}, "stop is ('a', 1); use a list of texts."),
    ({"stop_token_ids": 5}, "stop_token_ids is 5; use a list of whole numbers."),
    ({"allowed_tokens": 5}, "allowed_tokens is 5; use a list of whole numbers or None."),
    ({"logit_bias": [1]}, "logit_bias is [1]; use a dict."),
    ({"ignore_eos": "yes"}, "ignore_eos is 'yes'; use True or False."),
    ({"grammar": "x"}, "grammar is 'x'; use a Grammar or None."),
    (
        {"grammar": Grammar("yaml")},
        "kind is 'yaml'; use one of json_schema, json_object, regex, choice, lark.",
    ),
    ({"grammar": Grammar("regex", 3)}, "value is 3; use a text."),
    ({"tools": [3]}, "tools is [3]; use a list of dicts."),
    ({"template_options": []}, "template_options is []; use a dict."),
    ({"depth": 3.5}, "depth is 3.5; use a text."),
    ({"thinking": "on"}, "thinking is 'on'; use True or False or None."),
    ({"use_cache": 1}, "use_cache is 1; use True or False."),
]


@pytest.mark.parametrize(("fields", "sentence"), WRONG)
def test_a_value_of_another_type_is_named(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask("hi", **fields)
    assert str(caught.value) == sentence
    assert caught.value.param == sentence.split()[0]


def test_other_shapes_of_whole_requests() -> None:
    for request, sentence in (
        (GenerationRequest(messages="hello"), "messages is 'hello'; use a list of dicts or None."),
        (GenerationRequest(prompt=b"x" * 90), "..."),
        (GenerationRequest(prompt="x", sampling={"n": 1}), "sampling is {'n': 1}; use a SamplingParams."),
    ):
        with pytest.raises(RequestError) as caught:
            request.check()
        assert sentence in str(caught.value) and len(str(caught.value)) < 120


def test_lists_do_where_tuples_are_declared() -> None:
    GenerationRequest(tokens=[1, 2], sampling=SamplingParams(stop=["a"], banned_tokens=[3])).check()
