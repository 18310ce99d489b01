"""``/v1/chat/completions`` as the openai SDK sees it."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from pydantic import BaseModel

from macspec.errors import MacspecError, RequestError
from macspec.request import Grammar
from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Running, Start

HELLO: Any = [{"role": "user", "content": "Say hello to everyone here"}]
TOOL: Any = {"type": "function", "function": {"name": "weather"}}
MODEL = "scripted/model"


async def test_whole_answer(start: Start) -> None:
    server = await start(ScriptedClient(Reply("Hello there my friend", cached_tokens=2)))
    answer = await server.openai.chat.completions.create(model=MODEL, messages=HELLO)
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (
        "Hello there my friend",
        "assistant",
        "stop",
    )
    assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint is not None and answer.system_fingerprint.startswith("fp_")
    usage = answer.usage
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 4, 9)
    assert usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens == 2
    details = usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (2, 6)
    timings = answer.model_extra["timings"] if answer.model_extra else {}
    assert timings["rounds"] == 2 and timings["acceptance_length"] == 2.0 and timings["mean_depth"] == 4.0


async def test_stream_has_the_form_clients_insist_on(start: Start) -> None:
    server = await start(ScriptedClient(Reply("Hello there my friend and more")))
    body = {"messages": HELLO, "stream_options": {"include_usage": True}}
    chunks = await server.sse("/v1/chat/completions", body)
    assert len({chunk["id"] for chunk in chunks}) == len({chunk["created"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    *parts, last, usage = chunks
    deltas = [chunk["choices"][0] for chunk in parts]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in deltas[1:])
    assert all(choice["finish_reason"] is None for choice in deltas)
    assert "".join(choice["delta"]["content"] for choice in deltas) == "Hello there my friend and more"
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in [*parts, last])
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 6 and usage["timings"]["rounds"] == 2


@pytest.mark.parametrize("options", [None, {}, {"include_usage": None}, {"include_usage": False}])
async def test_no_usage_unless_asked(start: Start, options: Any) -> None:
    server = await start()
    chunks = await server.sse("/v1/chat/completions", {"messages": HELLO, "stream_options": options})
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_stream_ends_with_done_and_equals_whole(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four")))
    response = await server.chat(stream=True)
    assert response.text.endswith("data: [DONE]\n\n")
    text = ""
    async for chunk in await server.openai.chat.completions.create(model=MODEL, messages=HELLO, stream=True):
        text += chunk.choices[0].delta.content or ""
    whole = await server.openai.chat.completions.create(model=MODEL, messages=HELLO)
    assert text == whole.choices[0].message.content


async def test_parameters_reach_the_engine(start: Start) -> None:
    server = await start()
    response = await server.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": -100},
        max_completion_tokens=9,
        stop=["x", "y"],
        n=2,
        logprobs=True,
        top_logprobs=3,
        min_tokens=1,
        stop_token_ids=[4],
        ignore_eos=True,
        depth=3,
        cache_prompt=False,
        thinking_budget=100,
        reasoning_effort="low",
        chat_template_kwargs={"preserve_thinking": True},
        user="u",
        metadata={"a": "b"},
        store=True,
        some_future_field={"x": 1},
    )
    assert response.status_code == 200, response.text
    request = server.engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
    assert (sampling.seed, sampling.repetition_penalty) == (7, 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert sampling.logit_bias == {5: -100} and sampling.max_tokens == 9 and sampling.stop == ("x", "y")
    assert (sampling.n, sampling.logprobs, sampling.min_tokens, sampling.ignore_eos) == (2, 3, 1, True)
    assert sampling.stop_token_ids == (4,) and request.depth == "3" and request.use_cache is False
    assert request.thinking is True and request.thinking_budget == 100
    assert request.template_options == {"preserve_thinking": True}
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1]


async def test_null_means_absent(start: Start) -> None:
    server = await start()
    fields = ["temperature", "top_p", "n", "stop", "seed", "logit_bias", "tools", "tool_choice", "response_format"]
    fields += ["stream", "stream_options", "max_tokens", "logprobs", "top_logprobs", "functions", "audio", "model"]
    assert (await server.chat(**dict.fromkeys(fields))).status_code == 200
    assert server.engine.requests[0].sampling.temperature == 0.0


async def test_default_temperature_is_the_servers(start: Start) -> None:
    server = await start(temperature=0.7)
    await server.chat()
    assert server.engine.requests[0].sampling.temperature == 0.7


async def test_limit_beyond_the_context_is_the_context(start: Start) -> None:
    server = await start()
    await server.chat(max_tokens=10_000_000)
    assert server.engine.requests[0].sampling.max_tokens == 4096


async def test_refusal_reaches_the_sdk_whole(start: Start) -> None:
    server = await start()
    with pytest.raises(openai.BadRequestError) as caught:
        await server.openai.chat.completions.create(model=MODEL, messages=HELLO, temperature=5)
    error = caught.value
    assert (error.type, error.param, error.code) == ("invalid_request_error", "temperature", "invalid_value")
    assert "temperature" in str(error) and error.request_id is not None and error.request_id.startswith("req_")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 1000}, "n", "invalid_value"),
    ({"stop": ["a"] * 5}, "stop", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": [1]}, "stop", "invalid_value"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"stream": "yes"}, "stream", "invalid_value"),
    ({"stream_options": 1}, "stream_options", "invalid_value"),
    ({"depth": "deep"}, "depth", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format.schema", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": "maybe", "tools": [TOOL]}, "tool_choice", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [7]}, "tools[0]", "invalid_value"),
    ({"functions": [{}]}, "functions", "unsupported_parameter"),
    ({"audio": {}}, "audio", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"prediction": {"type": "content"}}, "prediction", "unsupported_parameter"),
    ({"draft_model": "x/y"}, "draft_model", "unsupported_parameter"),
    ({"adapters": "/tmp/x"}, "adapters", "unsupported_parameter"),
    ({"chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter"),
    (
        {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
        "chat_template_kwargs.chat_template",
        "unsupported_parameter",
    ),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "invalid_value"),
]


async def test_refused_values_name_the_field(start: Start) -> None:
    server = await start()
    for (fields, param, code), stream in itertools.product(REFUSED, (False, True)):
        response = await server.chat(**{"stream": stream, **fields})
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code), fields
        assert error["message"].endswith(".")
    assert server.engine.requests == []


IMAGE = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]


REFUSED_MESSAGES: list[tuple[Any, str]] = [
    (None, "messages"),
    ("hello", "messages"),
    ([], "messages"),
    ([123], "messages[0]"),
    ([{}], "messages[0].role"),
    ([{"role": 123, "content": "x"}], "messages[0].role"),
    ([{"role": "", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": IMAGE}], "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
]


async def test_refused_messages_name_the_place(start: Start) -> None:
    server = await start()
    for messages, param in REFUSED_MESSAGES:
        with pytest.raises(openai.BadRequestError) as caught:
            await server.openai.chat.completions.create(model=MODEL, messages=messages)
        assert caught.value.param == param and caught.value.type == "invalid_request_error"
        assert isinstance(caught.value.body, dict) and caught.value.body["message"] in str(caught.value)


async def test_all_forms_of_messages(start: Start) -> None:
    server = await start()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "user", "content": "go"},
    ]
    assert (await server.chat(messages=messages)).status_code == 200
    assert server.engine.requests[0].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab", "name": "Ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}, "id": "c1"}],
            "reasoning_content": "hm",
        },
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "user", "content": "go"},
    )


class Answer(BaseModel):
    """What the structured answer should be."""

    city: str


async def test_structured_output(start: Start) -> None:
    engine = ScriptedClient(Reply('{"city": "Bern"}'))
    server = await start(engine)
    parsed = await server.openai.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Answer)
    assert parsed.choices[0].message.parsed == Answer(city="Bern")
    grammar = engine.requests[0].sampling.grammar
    assert grammar is not None and grammar.kind == "json_schema" and "city" in json.loads(grammar.value)["properties"]
    await server.chat(response_format={"type": "json_object"})
    assert engine.requests[1].sampling.grammar == Grammar("json_object")
    await server.chat(response_format={"type": "text"})
    assert engine.requests[2].sampling.grammar is None
    await server.chat(guided_choice=["a", "b"])
    assert engine.requests[3].sampling.grammar == Grammar("choice", '["a", "b"]')


async def test_logprobs_spell_the_text(start: Start) -> None:
    server = await start(ScriptedClient(Reply("Grüße, Welt 🙂 again")))
    answer = await server.openai.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content if answer.choices[0].logprobs else None
    assert content is not None
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    assert b"".join(bytes(token.bytes or ()) for token in content).decode() == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 2 for token in content)
    chunks = await server.sse("/v1/chat/completions", {"messages": HELLO, "logprobs": True})
    streamed = [token for c in chunks for token in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert "".join(token["token"] for token in streamed) == answer.choices[0].message.content
    plain = await server.chat()
    assert plain.json()["choices"][0]["logprobs"] is None


async def test_finish_reasons(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four five")))
    assert (await server.chat(max_tokens=2)).json()["choices"][0]["finish_reason"] == "length"
    stopped = (await server.chat(stop="three")).json()["choices"][0]
    assert stopped["finish_reason"] == "stop" and stopped["message"]["content"] == "one two "


async def test_context_is_refused_before_the_status_line(start: Start) -> None:
    server = await start(ScriptedClient(Reply("x", prompt_tokens=5000)))
    for stream in (False, True):
        response = await server.chat(stream=stream)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


async def test_engine_refusals_use_the_clients_names(start: Start) -> None:
    error = RequestError("No such schema.", param="grammar")
    server = await start(ScriptedClient(Reply("x", error=error)))
    response = await server.chat(response_format={"type": "json_object"})
    assert response.json()["error"]["param"] == "response_format"
    for stream in (False, True):
        for name, value in (("guided_regex", "(("), ("guided_choice", []), ("guided_json", {})):
            fields = {name: value, "stream": stream}
            for answer in (
                await server.chat(**fields),
                await server.post("/v1/completions", {"prompt": "x", **fields}),
            ):
                assert f'"param":"{name}"' in answer.text
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "strange"}}}
        forced = await server.chat(tools=[tool], tool_choice="required", stream=stream)
        assert '"param":"tools"' in forced.text


async def test_failure_in_the_middle_is_an_error_event(start: Start) -> None:
    engine = ScriptedClient([Reply("one two three four", error=MacspecError("It broke."), fails_at=1), Reply("fine")])
    server = await start(engine)
    stream = await server.openai.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    text = ""
    with pytest.raises(openai.APIError, match="It broke"):
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "one two three"
    assert (await server.chat()).json()["choices"][0]["message"]["content"] == "fine"


async def test_whole_answer_that_fails_is_a_server_error(start: Start) -> None:
    server = await start(ScriptedClient([Reply("a", error=ValueError("secret /path")), Reply("b", dies=True)]))  # type: ignore[arg-type]  # not what an engine raises
    response = await server.chat()
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text and response.headers["x-request-id"] in response.text
    died = await server.chat()
    assert died.status_code == 503 and died.json()["error"]["code"] == "engine_died"
    assert died.headers["retry-after"] == "2"


async def test_prompt_progress(start: Start) -> None:
    server = await start(ScriptedClient(Reply("x", prefill=3, prompt_tokens=300)))
    chunks = await server.sse("/v1/chat/completions", {"messages": HELLO, "return_progress": True})
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(step["processed"], step["total"]) for step in progress] == [(100, 300), (200, 300), (300, 300)]
    plain = await server.chat(stream=True)
    assert ": prefill 100/300\n\n" in plain.text


async def test_an_answer_that_was_begun_goes_on(start: Start) -> None:
    server = await start()
    begun = [*HELLO, {"role": "assistant", "content": "Hello ev"}]
    assert (await server.chat(messages=begun, continue_final_message=True)).status_code == 200
    assert server.engine.requests[-1].continue_final_message
    assert (await server.chat(messages=begun)).status_code == 200
    assert not server.engine.requests[-1].continue_final_message
    refused = await server.chat(messages=HELLO, continue_final_message=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "continue_final_message")


async def test_same_seed_same_fingerprint(start: Start) -> None:
    server: Running = await start()
    first, second = (await server.chat(seed=1)).json(), (await server.chat(seed=1)).json()
    assert first["system_fingerprint"] == second["system_fingerprint"] and first["id"] != second["id"]
