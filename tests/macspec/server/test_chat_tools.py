"""Tools of ``/v1/chat/completions``: offered, forced, streamed, and with a model that knows none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from macspec.request import Grammar
from macspec.worker.scripted import DEFAULT_INFO, Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

HELLO: Any = [{"role": "user", "content": "Say hello to everyone here"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
MODEL = "scripted/model"
PLAIN_MODEL = replace(DEFAULT_INFO, tools=False, thinking=False)


async def test_tool_calls(start: Start) -> None:
    engine = ScriptedClient(Reply("Let me look", tool_calls=[("weather", '{"city": "Bern"}'), ("weather", "{}")]))
    server = await start(engine)
    answer = await server.openai.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look"
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", '{"city": "Bern"}'),
        ("weather", "{}"),
    ]
    assert engine.requests[0].tools == (TOOL,)
    single = await server.chat(tools=[TOOL], parallel_tool_calls=False)
    assert len(single.json()["choices"][0]["message"]["tool_calls"]) == 1


async def test_tool_calls_in_a_stream(start: Start) -> None:
    engine = ScriptedClient(Reply(tool_calls=[("weather", '{"city": "Bern"}'), ("weather", "{}")]))
    server = await start(engine)
    chunks = await server.sse("/v1/chat/completions", {"messages": HELLO, "tools": [TOOL]})
    parts = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    opening = [part for part in parts if "id" in part]
    assert [part["index"] for part in opening] == [0, 1] and len({part["id"] for part in opening}) == 2
    assert all(part["type"] == "function" and part["function"]["arguments"] == "" for part in opening)
    rest = [part for part in parts if "id" not in part]
    assert all(set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in rest)
    assert rest[0] == {"index": 0, "function": {"arguments": '{"city": "Bern"}'}}
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}


async def test_tool_choice(start: Start) -> None:
    other = {"type": "function", "function": {"name": "news", "parameters": {"type": "object"}}}
    engine = ScriptedClient(
        [
            Reply("plain"),
            Reply('{"city": "Bern"}'),
            Reply('{"name": "news", "arguments": {"a": 1}}'),
            Reply('{"name": "news", "argum', reason="length"),
        ]
    )
    server = await start(engine)
    none = (await server.chat(tools=[TOOL], tool_choice="none")).json()
    assert none["choices"][0]["message"]["content"] == "plain" and engine.requests[0].tools == ()

    named = {"type": "function", "function": {"name": "weather"}}
    choice = (await server.chat(tools=[TOOL, other], tool_choice=named)).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Bern"}'}
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert engine.requests[1].sampling.grammar == Grammar("json_schema", json.dumps(TOOL["function"]["parameters"]))

    required = (await server.chat(tools=[TOOL, other], tool_choice="required")).json()["choices"][0]
    assert required["message"]["tool_calls"][0]["function"] == {"name": "news", "arguments": '{"a": 1}'}

    cut = (await server.chat(tools=[TOOL, other], tool_choice="required")).json()["choices"][0]
    assert cut["finish_reason"] == "length" and "tool_calls" not in cut["message"]

    foreign = await server.chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}})
    assert foreign.json()["error"]["param"] == "tool_choice"


async def test_model_without_tools_says_so(start: Start) -> None:
    server = await start(ScriptedClient(info=PLAIN_MODEL))
    for path, body in (
        ("/v1/chat/completions", {"messages": HELLO, "tools": [TOOL]}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function", **TOOL["function"]}]}),
        ("/tokenize", {"messages": HELLO, "tools": [TOOL]}),
    ):
        refused = await server.post(path, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert (await server.chat(tools=[TOOL], tool_choice="none")).status_code == 200
    assert server.engine.requests[-1].tools == ()


async def test_forced_call_of_a_model_without_tools(start: Start) -> None:
    other = {"type": "function", "function": {"name": "news", "parameters": {"type": "object"}}}
    engine = ScriptedClient([Reply('{"city": "Bern"}'), Reply('{"name": "news", "arguments": {}}')], info=PLAIN_MODEL)
    server = await start(engine)
    named = {"type": "function", "function": {"name": "weather"}}
    one = (await server.chat(tools=[TOOL, other], tool_choice=named)).json()["choices"][0]
    assert one["finish_reason"] == "tool_calls"
    assert one["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Bern"}'}
    # The template would drop the tools, so they are told in the system message, and only the one to call.
    asked = engine.requests[0]
    assert asked.tools == () and asked.sampling.grammar is not None and asked.messages is not None
    assert [message["role"] for message in asked.messages] == ["system", "user"]
    told = asked.messages[0]["content"]
    assert json.dumps(TOOL["function"]) in told and "news" not in told

    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    some = (await server.chat(messages=messages, tools=[TOOL, other], tool_choice="required")).json()["choices"][0]
    assert some["message"]["tool_calls"][0]["function"]["name"] == "news"
    asked = engine.requests[1]
    assert asked.messages is not None and len(asked.messages) == 2
    told = asked.messages[0]["content"]
    assert told.startswith("Be brief.\n\n") and "weather" in told and "news" in told


async def test_earlier_calls_of_a_model_without_tools(start: Start) -> None:
    server = await start(ScriptedClient(info=PLAIN_MODEL))
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    assert (await server.chat(messages=messages)).status_code == 200
    # The template would drop the call and may not know the role.
    assert server.engine.requests[-1].messages == (
        *HELLO,
        {"role": "assistant", "content": '{"name": "weather", "arguments": {"city": "Bern"}}'},
        {"role": "user", "content": "rain"},
    )
