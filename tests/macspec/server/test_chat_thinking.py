"""Thinking in every form of request: switched, levelled, budgeted, and with a model that does not think."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from macspec.worker.scripted import DEFAULT_INFO, Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

HELLO: Any = [{"role": "user", "content": "Say hello to everyone here"}]
PLAIN_MODEL = replace(DEFAULT_INFO, tools=False, thinking=False)


async def test_thinking_is_apart_from_the_answer(start: Start) -> None:
    server = await start(ScriptedClient(Reply("Yes.", thinking="let me think about it")))
    message = (await server.chat()).json()["choices"][0]["message"]
    assert message["content"] == "Yes." and message["reasoning_content"] == "let me think about it"
    assert message["reasoning"] == message["reasoning_content"]
    chunks = await server.sse("/v1/chat/completions", {"messages": HELLO})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "let me think about it"
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    usage = (await server.chat()).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 5


THINKING: list[tuple[dict[str, Any], bool | None]] = [
    ({}, None),
    ({"reasoning_effort": "none"}, False),
    ({"reasoning_effort": "minimal"}, False),
    ({"reasoning_effort": "high"}, True),
    ({"reasoning": {"effort": "medium"}}, True),
    ({"reasoning": {"enabled": False}}, False),
    ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"}, False),
]


async def test_thinking_switches(start: Start) -> None:
    server = await start()
    for fields, thinking in THINKING:
        assert (await server.chat(**fields)).status_code == 200
        assert server.engine.requests[-1].thinking is thinking, fields


async def test_levels_of_thinking_reach_a_template_that_has_them(start: Start) -> None:
    server = await start(ScriptedClient(info=replace(DEFAULT_INFO, efforts=True)))
    for fields, thinking, options in (
        ({"reasoning_effort": "low"}, True, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "high"}}, True, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "none"}, False, {"reasoning_effort": "none"}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            True,
            {"reasoning_effort": "high"},
        ),
        ({}, None, {}),
    ):
        assert (await server.chat(**fields)).status_code == 200
        request = server.engine.requests[-1]
        assert (request.thinking, request.template_options) == (thinking, options), fields
    server = await start(ScriptedClient(info=replace(DEFAULT_INFO, efforts=True, thinking=False)))
    assert (await server.chat(reasoning_effort="high")).status_code == 200
    assert server.engine.requests[-1].thinking is None


THINKING_ON: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": HELLO, "reasoning_effort": "low"}, "reasoning_effort"),
    ("/v1/chat/completions", {"messages": HELLO, "reasoning": {"effort": "high"}}, "reasoning.effort"),
    (
        "/v1/chat/completions",
        {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": True}},
        "chat_template_kwargs.enable_thinking",
    ),
    ("/v1/responses", {"input": "x", "reasoning": {"effort": "medium"}}, "reasoning.effort"),
]


async def test_model_without_thinking_says_so(start: Start) -> None:
    server = await start(ScriptedClient(info=PLAIN_MODEL))
    for path, body, param in THINKING_ON:
        refused = await server.post(path, body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, param, "unsupported_parameter"), body
    budget = {"messages": HELLO, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = await server.post(path, budget)
        assert refused.status_code == 400 and "thinking" in refused.json()["error"]["message"]
    assert server.engine.requests == []


async def test_not_to_think_is_harmless_everywhere(start: Start) -> None:
    server = await start(ScriptedClient(info=PLAIN_MODEL))
    for effort in ("none", "minimal"):
        assert (await server.chat(reasoning_effort=effort)).status_code == 200
        assert server.engine.requests[-1].thinking is False
    assert (await server.chat(chat_template_kwargs={"enable_thinking": False})).status_code == 200
    # Left to the model.
    adaptive = {"messages": HELLO, "max_tokens": 9, "thinking": {"type": "adaptive"}}
    assert (await server.post("/v1/messages", adaptive)).status_code == 200
    assert server.engine.requests[-1].thinking is None
