"""``/v1/completions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from macspec.request import TokenInfo
from macspec.server.completions import _Offsets
from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

MODEL = "scripted/model"


async def test_whole_and_streamed_agree(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four")))
    whole = await server.openai.completions.create(model=MODEL, prompt="count")
    assert whole.choices[0].text == "one two three four" and whole.choices[0].finish_reason == "stop"
    assert whole.object == "text_completion" and whole.usage is not None and whole.usage.completion_tokens == 4
    chunks = await server.sse("/v1/completions", {"prompt": "count", "stream_options": {"include_usage": True}})
    *parts, last, usage = chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in parts) == "one two three four"
    assert last["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 5
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_prompts_and_defaults(start: Start) -> None:
    server = await start()
    several = await server.post("/v1/completions", {"prompt": ["a b", "c"], "n": 2})
    assert [(c["index"], c["text"]) for c in several.json()["choices"]] == [
        (0, "a b"),
        (1, "a b"),
        (2, "c"),
        (3, "c"),
    ]
    assert several.json()["usage"]["prompt_tokens"] == 3
    assert server.engine.requests[0].sampling.max_tokens == 16
    tokens = await server.post("/v1/completions", {"prompt": [1, 2, 3]})
    assert tokens.status_code == 200 and server.engine.requests[-1].tokens == (1, 2, 3)
    await server.post("/v1/completions", {"prompt": [[1], [2]]})
    assert [request.tokens for request in server.engine.requests[-2:]] == [(1,), (2,)]


def test_offsets_count_characters_and_not_their_parts() -> None:
    wave = "🌊".encode()
    parts = [b"a", wave[:2], wave[2:3], wave[3:] + b"!", b"\xff", "é".encode(), b" end"]
    tokens = [TokenInfo(id=1, text=part.decode("utf-8", "replace"), raw=part, logprob=0.0) for part in parts]
    offsets = _Offsets()
    found = [at for token in tokens for at in (offsets.logprobs([token], 0) or {})["text_offset"]]
    assert found == [0, 1, 1, 1, 3, 4, 5]


async def test_logprobs_have_offsets(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four")))
    body = {"prompt": "x", "logprobs": 2}
    logprobs = (await server.post("/v1/completions", body)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["one", " two", " three", " four"] and logprobs["text_offset"] == [0, 3, 7, 13]
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])
    chunks = await server.sse("/v1/completions", body)
    offsets = [at for c in chunks for at in (c["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]]
    assert offsets == [0, 3, 7, 13]


async def test_refusals(start: Start) -> None:
    server = await start()
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"file": "x"}}, "prompt"),
        ({"prompt": ["a"] * 100}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 50}, "logprobs"),
    ]
    for body, param in cases:
        response = await server.post("/v1/completions", body)
        assert response.status_code == 400 and response.json()["error"]["param"] == param, (body, response.text)


async def test_prompt_progress(start: Start) -> None:
    server = await start(ScriptedClient(Reply("x", prefill=2, prompt_tokens=300)))
    chunks = await server.sse("/v1/completions", {"prompt": "x", "return_progress": True})
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(step["processed"], step["total"]) for step in progress] == [(150, 300), (300, 300)]
    plain = await server.post("/v1/completions", {"prompt": "x", "stream": True})
    assert ": prefill 150/300\n\n" in plain.text and "prompt_progress" not in plain.text
