"""What an answer's events carry, through the whole engine, at any depth the same."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tool_parsers import json_tools

from fake_drafters import oracle_drafter
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, SamplingParams, Text, ToolCall
from macspec_models.target import Target
from tiny_models import tiny_model
from tiny_tokenizers import byte_level

TOOLS = ({"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}},)


class ScriptedTarget(Target):
    """Says a given text whatever it is asked, by a large logit for the token due at each position."""

    script: dict[int, int] = {}

    def forward(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        first = cache[0].offset + 1
        logits = super().forward(tokens, cache)
        due = [self.script.get(first + row, -1) for row in range(tokens.shape[1])]
        spoken = mx.arange(self.vocab_size)[None] == mx.array(due)[:, None]
        return logits + 60.0 * spoken[None]


@cache
def target() -> ScriptedTarget:
    tokenizer = byte_level(
        added=("<think>", "</think>", "<tool_call>", "</tool_call>"),
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
        tool_parser=json_tools.parse_tool_call,
    )
    model, config = tiny_model("llama", seed=2, vocab_size=len(tokenizer))
    return ScriptedTarget(model, tokenizer, config, "tiny-thinker")


@pytest.fixture(autouse=True)
def unscripted():
    target().script = {}


def tokens_of(text: str) -> list[int]:
    return target().tokenizer.encode(text, add_special_tokens=False)


def spoken(text: str, depth: str, *, prompt: str = "hello", **options: Any) -> list[Any]:
    """Events of an answer whose target says ``text``; drafts mostly know it."""
    tokens, ids = tokens_of(text) + [target().tokenizer.eos_token_id], tokens_of(prompt)
    target().script = dict(enumerate(tokens, start=len(ids)))
    sampling = SamplingParams(**{"logprobs": 2, "max_tokens": 200, **options.pop("sampling", {})})
    request = GenerationRequest(tokens=tuple(ids), sampling=sampling, depth=depth, id="r", **options)
    drafter = None if depth == "0" else oracle_drafter(tokens, len(ids), wrong_every=5)
    return list(Engine(target(), drafter, prefill_chunk=5).generate(request))


def summary(events: list[Any]) -> list[Any]:
    """Texts joined per section, calls, in order; and every token once."""
    parts: list[Any] = []
    for event in events:
        if isinstance(event, ToolCall):
            parts.append((event.name, json.loads(event.arguments), event.call_id))
        elif isinstance(event, Text) and event.text:
            if parts and parts[-1][0] == event.section:
                parts[-1] = (event.section, parts[-1][1] + event.text)
            else:
                parts.append((event.section, event.text))
    return parts


@pytest.mark.parametrize("depth", ["0", "3", "full"])
def test_sections_and_calls(depth):
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Zürich"}}</tool_call>'
    text = f"<think>\nhm 😀</think>\n\nWell: {call}{call}done"
    events = spoken(text, depth, tools=TOOLS)
    assert summary(events) == [
        ("thinking", "hm 😀"),
        ("answer", "Well: "),
        ("weather", {"city": "Zürich"}, "call_r_0_0"),
        ("weather", {"city": "Zürich"}, "call_r_0_1"),
        ("answer", "done"),
    ]
    answer = collect(iter(events))[0]
    assert answer.tokens[:-1] == tokens_of(text)
    assert answer.finish_reason == "stop"
    assert answer.stats.thinking_tokens == len(tokens_of("\nhm 😀</think>"))


@pytest.mark.parametrize("depth", ["0", "full"])
def test_a_call_that_the_limit_cuts_off_is_the_text_that_was_written(depth):
    call = 'a<tool_call>{"name": "weather", "arguments": {}}'
    events = spoken(call + "</tool_call>", depth, tools=TOOLS, sampling={"max_tokens": len(tokens_of(call))})
    assert summary(events) == [("answer", call)] and events[-1].reason == "length"


def test_log_probabilities_do_not_depend_on_the_depth():
    plain, drafted = (collect(iter(spoken("naïve 你好 text", depth)))[0] for depth in ("0", "full"))
    assert b"".join(info.raw for info in plain.token_infos[:-1]) == "naïve 你好 text".encode()
    for mine, theirs in zip(drafted.token_infos, plain.token_infos, strict=True):
        assert mine.id == theirs.id and len(mine.top) == 2
        assert np.isclose(mine.logprob, theirs.logprob, atol=1e-4)
        assert mine.top[0].logprob >= mine.top[1].logprob


def test_a_stop_string_cuts_inside_a_block_and_a_token():
    for depth in ("0", "full"):
        answer = collect(iter(spoken("abc world the", depth, sampling={"stop": ("wor",)})))[0]
        assert (answer.text, answer.matched_stop, answer.finish_reason) == ("abc ", "wor", "stop")
        assert answer.tokens == tokens_of("abc wor")


def test_the_thinking_budget_is_kept_at_every_depth():
    ids = tuple(tokens_of("hello<think>"))
    (end,) = tokens_of("</think>")

    def answer(depth: str, drafter: Any = None):
        sampling = SamplingParams(max_tokens=14, ignore_eos=True, temperature=1.0, seed=3)
        request = GenerationRequest(tokens=ids, sampling=sampling, depth=depth, thinking_budget=6)
        return collect(Engine(target(), drafter, prefill_chunk=5).generate(request))[0]

    plain = answer("0")
    assert plain.tokens.index(end) <= 6
    assert plain.stats.thinking_tokens <= 7
    got = answer("full", oracle_drafter(plain.tokens, len(ids), wrong_every=4))
    assert (got.tokens, got.text, got.thinking) == (plain.tokens, plain.text, plain.thinking)


def test_the_seed_of_a_request_without_one_is_told_and_repeats_it():
    ids = tuple(tokens_of("hello"))

    def answer(seed: int | None):
        sampling = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=seed)
        request = GenerationRequest(tokens=ids, sampling=sampling, depth="0")
        return collect(Engine(target(), None).generate(request))[0]

    first, second = answer(None), answer(None)
    assert first.tokens != second.tokens
    assert answer(first.seed).tokens == first.tokens
