"""Every body and every chunk against the SDKs' own types and against OpenAI's published schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic.types
import openai.types
import openai.types.chat
import openai.types.responses
import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from macspec.errors import MacspecError
from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASK: Any = [{"role": "user", "content": "x"}]

REPLIES = [
    Reply("one two three four five", thinking="hm hm", tool_calls=[("f", '{"a": 1}'), ("f", "{}")]),
    Reply(""),
    Reply("one two three four five six", cached_tokens=1),
]
CHAT: list[dict[str, Any]] = [
    {},
    {"n": 2, "logprobs": True, "top_logprobs": 3},
    {"tools": [TOOL], "max_tokens": 2, "stream_options": {"include_usage": True}},
    {"stop": "three", "return_progress": True},
]


@cache
def published(name: str) -> Draft202012Validator:
    schemas = json.loads((Path(__file__).parent / "data" / "openai_schemas.json").read_text())
    return Draft202012Validator({"$defs": schemas["$defs"], "$ref": f"#/$defs/{name}"})


@pytest.mark.parametrize("reply", REPLIES)
async def test_chat(start: Start, reply: Reply) -> None:
    server = await start(ScriptedClient(reply))
    for fields in CHAT:
        body = {"messages": ASK, **fields}
        whole = (await server.post("/v1/chat/completions", body)).json()
        openai.types.chat.ChatCompletion.model_validate(whole)
        published("CreateChatCompletionResponse").validate(whole)
        for chunk in await server.sse("/v1/chat/completions", body):
            openai.types.chat.ChatCompletionChunk.model_validate(chunk)
            published("CreateChatCompletionStreamResponse").validate(chunk)


@pytest.mark.parametrize("reply", REPLIES)
async def test_completions(start: Start, reply: Reply) -> None:
    server = await start(ScriptedClient(reply))
    fields: list[dict[str, Any]] = [{}, {"n": 2, "logprobs": 2}, {"stream_options": {"include_usage": True}}]
    for extra in fields:
        body = {"prompt": "x", **extra}
        whole = (await server.post("/v1/completions", body)).json()
        openai.types.Completion.model_validate(whole)
        published("CreateCompletionResponse").validate(whole)
        for chunk in await server.sse("/v1/completions", body):
            # A chunk may lack the reason; the SDK's type for both requires it.
            for choice in chunk["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
            openai.types.Completion.model_validate(chunk)
            published("CreateCompletionResponse").validate(chunk)


@pytest.mark.parametrize("reply", REPLIES)
async def test_responses(start: Start, reply: Reply) -> None:
    server = await start(ScriptedClient(reply))
    event: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)
    flat = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    shape = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}
    fields: list[dict[str, Any]] = [
        {"tools": [flat], "tool_choice": "auto"},
        {"max_output_tokens": 3, "instructions": "i", "metadata": {"a": "b"}},
        {"text": shape, "reasoning": {"effort": "low"}},
        {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    ]
    for extra in fields:
        body = {"input": "x", **extra}
        whole = (await server.post("/v1/responses", body)).json()
        openai.types.responses.Response.model_validate(whole)
        published("Response").validate(whole)
        for value in await server.sse("/v1/responses", body):
            event.validate_python(value)
            published("ResponseStreamEvent").validate(value)


async def test_failed_response(start: Start) -> None:
    server = await start(ScriptedClient(Reply("a b c d e f", error=MacspecError("It broke."), fails_at=1)))
    event: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)
    events = await server.sse("/v1/responses", {"input": "x"})
    for value in events:
        event.validate_python(value)
        published("ResponseStreamEvent").validate(value)
    assert events[-1]["type"] == "error"


@pytest.mark.parametrize("reply", REPLIES)
async def test_messages(start: Start, reply: Reply) -> None:
    server = await start(ScriptedClient(reply))
    event: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
    body = {"messages": ASK, "max_tokens": 5, "model": "scripted/model"}
    anthropic.types.Message.model_validate((await server.post("/v1/messages", body)).json())
    for value in await server.sse("/v1/messages", body):
        event.validate_python(value)


async def test_models(start: Start) -> None:
    server = await start()
    published("ListModelsResponse").validate((await server.http.get("/v1/models")).json())
    published("ErrorResponse").validate((await server.chat(n=0)).json())
    for value in (await server.http.get("/v1/models")).json()["data"]:
        openai.types.Model.model_validate(value)
