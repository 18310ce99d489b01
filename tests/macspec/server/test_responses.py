"""``/v1/responses`` as the openai SDK and Codex use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from macspec.errors import MacspecError
from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

MODEL = "scripted/model"
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


async def test_whole_response(start: Start) -> None:
    server = await start(ScriptedClient(Reply("Hello there", thinking="hm hm", cached_tokens=1)))
    response = await server.openai.responses.create(model=MODEL, input="Say hello", instructions="Be brief.")
    assert response.output_text == "Hello there" and response.status == "completed"
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (4, 4)
    assert response.usage.input_tokens_details.cached_tokens == 1
    assert response.usage.output_tokens_details.reasoning_tokens == 2
    assert server.engine.requests[0].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello"},
    )


async def test_stream_events(start: Start) -> None:
    server = await start(ScriptedClient(Reply("Hello there my friend", thinking="hm", tool_calls=[("weather", "{}")])))
    events = await server.sse("/v1/responses", {"input": "x", "tools": [TOOL]})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]
    assert final["output"][1]["content"][0]["text"] == "Hello there my friend"
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.done"] == [0, 1, 2]


async def test_stream_through_the_sdk(start: Start) -> None:
    server = await start(ScriptedClient(Reply("Hello there my friend")))
    text = ""
    async with server.openai.responses.stream(model=MODEL, input="x") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
        final = await stream.get_final_response()
    assert text == final.output_text == "Hello there my friend"


async def test_what_codex_sends(start: Start) -> None:
    server = await start()
    body = {
        "model": MODEL,
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "abc"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        ],
        "tools": [
            TOOL,
            {"type": "web_search"},
            {"type": "namespace", "name": "x", "tools": []},
            {"type": "image_generation", "output_format": "png"},
            {"type": "custom", "name": "apply_patch"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "text": {"verbosity": "medium"},
    }
    events = await server.sse("/v1/responses", body)
    assert events[-1]["type"] == "response.completed"
    request = server.engine.requests[0]
    assert [tool["function"]["name"] for tool in request.tools] == ["weather"] and request.thinking is True
    assert request.messages is not None
    roles = [message["role"] for message in request.messages]
    assert roles == ["system", "system", "user", "assistant", "tool", "tool"]
    assert [call["id"] for call in request.messages[3]["tool_calls"]] == ["c1", "c2"]
    assert request.messages[3]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


async def test_refusals(start: Start) -> None:
    server = await start()
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": {}, "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": [], "role": "user", "content": "x"}, {"role": ["user"]}]}, "input[1].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": "c"}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ]
    for body, param in cases:
        response = await server.post("/v1/responses", body)
        assert response.status_code == 400, (body, response.text)
        assert response.json()["error"]["param"] == param, (body, response.text)


async def test_cut_answer_is_incomplete(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four")))
    response = await server.openai.responses.create(model=MODEL, input="x", max_output_tokens=2)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events = await server.sse("/v1/responses", {"input": "x", "max_output_tokens": 2})
    assert events[-1]["type"] == "response.incomplete"


async def test_structured_output(start: Start) -> None:
    server = await start(ScriptedClient(Reply('{"a": 1}')))
    shape = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    assert (await server.post("/v1/responses", {"input": "x", "text": {"format": shape}})).status_code == 200
    grammar = server.engine.requests[0].sampling.grammar
    assert grammar is not None and (grammar.kind, grammar.value) == ("json_schema", '{"type": "object"}')


async def test_failure_in_the_middle(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four", error=MacspecError("It broke."), fails_at=1)))
    with pytest.raises(openai.APIError, match="It broke"):
        async for _ in await server.openai.responses.create(model=MODEL, input="x", stream=True):
            pass
