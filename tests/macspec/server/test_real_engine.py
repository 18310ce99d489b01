"""The whole path, HTTP to device and back, with the real loop over a tiny random model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from macspec.errors import EngineDiedError
from macspec.worker.process_client import ProcessClient
from macspec.worker.protocol import EngineOptions
from seeded_requests import SeededRequest, seeded_request

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Running, Start, StartTiny

#: Starting an engine takes longer than all that is done with it here.
pytestmark = pytest.mark.asyncio(loop_scope="module")


Generate = Callable[[list[str], list[SeededRequest]], list[list[str]]]


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Generate:
    """Run ``macspec generate`` for each request, with one engine for all, and give the texts of each."""
    from macspec import cli
    from macspec.runtime import Runtime

    def run(words: list[str], requests: list[SeededRequest]) -> list[list[str]]:
        engines: list[Runtime] = []
        load, close = Runtime.load, Runtime.close

        def load_once(**options: Any) -> Runtime:
            if not engines:
                engines.append(load(**options))
            return engines[0]

        monkeypatch.setattr(Runtime, "load", load_once)
        monkeypatch.setattr(Runtime, "close", lambda engine: None)
        found = []
        for request in requests:
            assert cli.main(["generate", "--json", *words, *request.words]) == 0, capsys.readouterr().err
            answers = json.loads(capsys.readouterr().out)
            found.append([answer["text"] for answer in (answers if isinstance(answers, list) else [answers])])
        close(engines[0])
        return found

    return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(start_once: Start, start_tiny: StartTiny, pair: tuple[str, str]) -> Running:
    return await start_tiny(start_once, pair)


def body(seed: int, **fields: Any) -> dict[str, Any]:
    """A random request."""
    chance = random.Random(seed)
    parameters: dict[str, Any] = {
        "temperature": chance.choice([0.0, 0.7, 1.3]),
        "top_p": chance.choice([1.0, 0.9]),
        "top_k": chance.choice([0, 40]),
        "seed": seed,
        "max_tokens": chance.randrange(1, 24),
        "presence_penalty": chance.choice([0.0, 0.5]),
        "repetition_penalty": chance.choice([1.0, 1.2]),
    }
    return {"prompt": f"{seed} prompt of some length", **parameters, **fields}


async def text(server: Running, request: dict[str, Any]) -> str:
    return (await server.post("/v1/completions", request)).json()["choices"][0]["text"]


async def streamed(server: Running, request: dict[str, Any]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in await server.sse("/v1/completions", request))


def pieces(path: str, answer: dict[str, Any]) -> dict[int, str]:
    """The texts of a body or of a chunk, by choice."""
    inner = "text" if path == "/v1/completions" else "delta" if "chunk" in answer["object"] else "message"
    found = {choice["index"]: choice[inner] for choice in answer["choices"]}
    return {index: text if isinstance(text, str) else text.get("content") or "" for index, text in found.items()}


async def check_all_ways(server: Running, request: SeededRequest, expected: list[str]) -> None:
    """Whole and streamed answers over HTTP are the texts that were expected."""
    whole = (await server.post(request.path, request.body)).json()
    assert list(pieces(request.path, whole).values()) == expected, request
    joined = [""] * len(expected)
    for chunk in await server.sse(request.path, request.body):
        for index, text in pieces(request.path, chunk).items():
            joined[index] += text
    assert joined == expected, request


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 50), marks=pytest.mark.slow)])
async def test_streamed_equals_whole_equals_generate(
    server: Running, pair: tuple[str, str], generate: Generate, seeds: range
) -> None:
    requests = [seeded_request(seed, f"{seed} is a prompt of some length", 272, 24) for seed in seeds]
    expected = generate(["--model", pair[0], "--drafter", pair[1], "--depth", "full"], requests)
    for request, texts in zip(requests, expected, strict=True):
        await check_all_ways(server, request, texts)
    assert len({text for texts in expected for text in texts}) > len(seeds) // 2


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1500)
async def test_real_pair_streamed_equals_whole_equals_generate(start: Start, generate: Generate) -> None:
    asked = ["Name three rivers.", "What is a prime number?", "Write a line about snow.", "Count from one to nine."]
    requests = [seeded_request(seed, asked[seed % len(asked)], 49_152, 16) for seed in range(50)]
    expected = generate(["--depth", "full"], requests)
    # Only now: on a Mac two processes must not hold models at the same time.
    client = ProcessClient(EngineOptions())
    await client.start()
    server = await start(client, load=False)
    for request, texts in zip(requests, expected, strict=True):
        await check_all_ways(server, request, texts)
    assert client.info is not None and client.info.drafter
    assert (await client.stats()).accepted > 0


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.slow
@pytest.mark.model
async def test_real_pair_is_replaced_when_killed(start: Start) -> None:
    client = ProcessClient(EngineOptions())
    began = time.perf_counter()
    await client.start()
    load = time.perf_counter() - began
    server = await start(client, load=False)
    request = {"prompt": "Once upon a time", "max_tokens": 4}
    expected = await text(server, request)
    killed, told = 0.0, ""
    endless = {**request, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with server.http.stream("POST", "/v1/completions", json=endless) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {") and not killed:
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
                killed = time.perf_counter()
            told += line
    assert killed and "ended by SIGKILL" in told
    assert await text(server, request) == expected
    print(f"loaded in {load:.1f} s; the next answer came {time.perf_counter() - killed:.1f} s after the kill")


async def test_requests_side_by_side_equal_their_solo_runs(server: Running) -> None:
    requests = [body(seed, max_tokens=12, temperature=1.0) for seed in range(6)]
    alone = [await text(server, request) for request in requests]
    together = await asyncio.gather(*(streamed(server, request) for request in requests))
    assert list(together) == alone and len(set(alone)) > 3
    stats = await server.app.service.client.stats()
    assert stats.drafted > 0 and stats.active == 0


async def test_chat_counts_and_context(server: Running) -> None:
    answer = (await server.chat(max_tokens=5, temperature=1.0, seed=1)).json()
    assert answer["usage"]["completion_tokens"] <= 5 and answer["usage"]["prompt_tokens"] > 0
    counted = await server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    assert counted.json()["count"] == answer["usage"]["prompt_tokens"]
    too_long = await server.post("/v1/completions", {"prompt": "x" * 20_000})
    assert too_long.status_code == 400 and too_long.json()["error"]["code"] == "context_length_exceeded"
    wrong = await server.chat(logit_bias={"99999": 1})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "logit_bias"


async def test_leaving_stops_the_engine_within_a_round(server: Running) -> None:
    request = body(1, max_tokens=100_000, temperature=1.0, ignore_eos=True, stream=True, depth=0)
    task = asyncio.create_task(server.post("/v1/completions", request))
    client = server.app.service.client
    before = await client.stats()
    while (await client.stats()).rounds < before.rounds + 3:
        await asyncio.sleep(0.001)
    task.cancel()
    while (await client.stats()).cancelled == before.cancelled:
        await asyncio.sleep(0.001)
    ended = await client.stats()
    assert ended.active == 0
    request = body(2, max_tokens=1)
    await text(server, request)
    assert (await client.stats()).rounds == ended.rounds + 1


async def test_retry_after_leaving_during_prefill_goes_on_where_it_was(server: Running) -> None:
    request = {"prompt": "".join(map(str, range(700))), "max_tokens": 1, "stream": True}
    seen = 0
    async with server.http.stream("POST", "/v1/completions", json=request) as response:
        async for line in response.aiter_lines():
            seen += line.startswith(": prefill")
            if seen == 10:
                break
    client = server.app.service.client
    while (await client.stats()).active:
        await asyncio.sleep(0.001)
    again = (await server.post("/v1/completions", {**request, "stream": False})).json()["usage"]
    # Chunks have eight tokens here.
    assert 80 <= again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


async def _busy(server: Running, rounds: int) -> None:
    """Wait until a request is being answered and has come so far."""
    client = server.app.service.client
    while True:
        with contextlib.suppress(EngineDiedError):
            stats = await client.stats()
            if stats.active and stats.rounds >= rounds:
                return
        await asyncio.sleep(0)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_killed_engine_is_replaced(server: Running, phase: str) -> None:
    client = server.app.service.client
    before = await client.stats()
    prompt = "x" * (200 if phase == "prefill" else 10)
    request = body(1, prompt=prompt, max_tokens=100_000, temperature=1.0, ignore_eos=True, stream=True, depth=0)
    task = asyncio.create_task(server.post("/v1/completions", request))
    await _busy(server, before.rounds + (3 if phase == "decode" else 0))
    os.kill(client.pid, signal.SIGKILL)
    if phase == "decode":
        assert "ended by SIGKILL" in (await task).text
    else:
        # Nothing was sent yet: the request goes to the replacement, which this client then leaves.
        await _busy(server, 1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert (await server.post("/v1/completions", body(3))).status_code == 200
    assert (await client.stats()).restarts == before.restarts + 1
