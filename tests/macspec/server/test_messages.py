"""``/v1/messages`` as the Anthropic SDK sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from macspec.errors import MacspecError
from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Running, Start

MODEL = "scripted/model"
ASK: Any = [{"role": "user", "content": "Say hello"}]
TOOL: Any = {"name": "weather", "description": "Now", "input_schema": {"type": "object", "properties": {}}}


def sdk(server: Running) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0, timeout=120)


@pytest.fixture
def clients() -> list[anthropic.AsyncAnthropic]:
    return []


@pytest.fixture
async def connect(clients: list[anthropic.AsyncAnthropic]) -> AsyncIterator[Any]:
    def make(server: Running) -> anthropic.AsyncAnthropic:
        clients.append(sdk(server))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


async def test_whole_message(start: Start, connect: Any) -> None:
    engine = ScriptedClient(
        Reply("Hello there", thinking="hm hm", cached_tokens=1, tool_calls=[("weather", '{"a": 1}')])
    )
    server = await start(engine)
    message = await connect(server).messages.create(
        model=MODEL,
        max_tokens=50,
        messages=ASK,
        system="Be brief.",
        tools=[TOOL],
        extra_body={"temperature": 0.5, "top_k": 5},
    )
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[1].text == "Hello there" and message.content[2].input == {"a": 1}
    assert message.stop_reason == "tool_use" and message.role == "assistant"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 1, 4)
    request = engine.requests[0]
    assert request.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello"},
    )
    assert request.tools[0]["function"]["name"] == "weather" and request.sampling.top_k == 5


async def test_stream(start: Start, connect: Any) -> None:
    engine = ScriptedClient(Reply("Hello there my friend", thinking="hm", tool_calls=[("weather", '{"a": 1}')]))
    server = await start(engine)
    async with connect(server).messages.stream(model=MODEL, max_tokens=50, messages=ASK, tools=[TOOL]) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[1].text == "Hello there my friend" and final.content[2].input == {"a": 1}
    assert final.stop_reason == "tool_use" and final.usage.output_tokens == 5
    events = await server.sse("/v1/messages", {"max_tokens": 5, "messages": ASK})
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


async def test_stop_reasons(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four")))
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"max_tokens": 50}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"max_tokens": 50, "stop_sequences": ["three"]}, "stop_sequence", "three"),
    ]
    for fields, reason, sequence in cases:
        body = (await server.post("/v1/messages", {"messages": ASK, **fields})).json()
        assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


async def test_blocks_and_tools(start: Start) -> None:
    server = await start()
    body = {
        "model": MODEL,
        "max_tokens": 32000,
        "system": [{"type": "text", "text": "Rules", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "ok"},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
        "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "top_p": 0.9,
    }
    assert (await server.post("/v1/messages", body)).status_code == 200
    request = server.engine.requests[0]
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
    assert request.messages == (
        {"role": "system", "content": "Rules"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "user", "content": "and?"},
    )
    assert request.thinking is True and request.thinking_budget == 1024 and len(request.tools) == 1
    counted = await server.post("/v1/messages/count_tokens", body)
    assert counted.json() == {"input_tokens": 5}


async def test_forced_tool(start: Start) -> None:
    server = await start(ScriptedClient(Reply('{"a": 2}')))
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        body = {"max_tokens": 9, "messages": ASK, "tools": [TOOL], "tool_choice": choice}
        answer = (await server.post("/v1/messages", body)).json()
        assert answer["content"][0]["type"] == "tool_use" and answer["content"][0]["input"] == {"a": 2}


async def test_words_put_into_the_assistants_mouth_are_the_beginning_of_its_answer(start: Start) -> None:
    server = await start()
    for begun, continues in (
        ("The answer is", True),
        ([{"type": "text", "text": "The answer is"}], True),
        ([{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}], False),
    ):
        body = {"max_tokens": 9, "messages": [*ASK, {"role": "assistant", "content": begun}], "tools": [TOOL]}
        assert (await server.post("/v1/messages", body)).status_code == 200
        assert server.engine.requests[-1].continue_final_message is continues, begun
    assert (await server.post("/v1/messages", {"max_tokens": 9, "messages": ASK})).status_code == 200
    assert not server.engine.requests[-1].continue_final_message
    forced = {
        "max_tokens": 9,
        "messages": [*ASK, {"role": "assistant", "content": "So"}],
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
    }
    refused = await server.post("/v1/messages", forced)
    assert refused.status_code == 400 and "forced tool call" in refused.json()["error"]["message"]


async def test_errors_have_anthropics_shape(start: Start) -> None:
    server = await start(ScriptedClient(Reply("a b c d e f", error=MacspecError("It broke."), fails_at=1)), api_key="k")
    missing = await server.post("/v1/messages", {"max_tokens": 1, "messages": ASK})
    assert missing.status_code == 401 and missing.json()["error"]["type"] == "authentication_error"
    key = {"x-api-key": "k"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"messages": ASK}, "max_tokens"),
        ({"messages": [], "max_tokens": 1}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}], "max_tokens": 1},
            "messages[0].content[0].text",
        ),
        ({"messages": ASK, "max_tokens": 1, "thinking": {"type": "enabled"}}, "thinking"),
        ({"messages": ASK, "max_tokens": 1, "temperature": 2}, "temperature"),
    ]
    for body, place in cases:
        response = await server.post("/v1/messages", body, **key)
        value = response.json()
        assert response.status_code == 400 and value["type"] == "error", value
        assert value["error"]["type"] == "invalid_request_error" and place in value["error"]["message"]
        assert value["request_id"] == response.headers["x-request-id"]
    events = (await server.post("/v1/messages", {"max_tokens": 50, "messages": ASK, "stream": True}, **key)).text
    assert 'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"It broke."}' in events
