"""The order of things: waiting, fairness, leaving early, silence, and the engine's death."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx2
import openai
import pytest

from macspec.server.admission import Admission
from macspec.server.errors import QueueFullError
from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Running, Start

MODEL = "scripted/model"


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def test_admission_is_fair_between_clients() -> None:
    admission = Admission(slots=1, limit=10)
    order: list[str] = []

    async def work(client: str, name: str) -> None:
        async with admission.slot(client):
            order.append(name)
            await asyncio.sleep(0)

    names = ["a1", "a2", "a3", "b1", "a4", "c1", "b2"]
    await asyncio.gather(*(work(name[0], name) for name in names))
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_admission_is_bounded_and_survives_cancelling() -> None:
    admission = Admission(slots=1, limit=2)
    release = asyncio.Event()

    async def work() -> None:
        async with admission.slot("a"):
            await release.wait()

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    await until(lambda: admission.waiting == 2)
    with pytest.raises(QueueFullError) as caught:
        await work()
    assert caught.value.http_status == 429 and 1 <= (caught.value.retry_after or 0) <= 60
    tasks[1].cancel()
    await until(lambda: admission.waiting == 1)
    release.set()
    # Cancelled in the moment its turn came: the turn must go on to the next.
    await until(lambda: tasks[0].done())
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (admission.running, admission.waiting) == (0, 0) and admission.free


async def test_turn_given_and_cancelled_at_once_is_passed_on() -> None:
    admission = Admission(slots=1, limit=5)
    async with admission.slot("a"):
        waiting = [asyncio.create_task(_hold(admission)) for _ in range(2)]
        await until(lambda: admission.waiting == 2)
    # The slot was just given to the first waiter, which has not run yet.
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[1].exception() is None and admission.free


async def _hold(admission: Admission) -> None:
    async with admission.slot("a"):
        pass


async def test_full_queue_is_429(start: Start) -> None:
    gate = asyncio.Event()
    server = await start(ScriptedClient(Reply("x", gate=gate)), parallel=1, max_queue=1)
    first = asyncio.create_task(server.chat())
    await until(lambda: server.engine.active == 1)
    second = asyncio.create_task(server.chat())
    await until(lambda: server.app.service.admission.waiting == 1)
    third = await server.chat()
    assert third.status_code == 429 and third.json()["error"]["type"] == "rate_limit_error"
    assert int(third.headers["retry-after"]) >= 1
    gate.set()
    assert [(await task).status_code for task in (first, second)] == [200, 200]


async def test_parallel_requests_are_bounded_and_not_mixed(start: Start) -> None:
    server = await start(ScriptedClient(), parallel=3, max_queue=100)

    async def ask(number: int) -> bool:
        text = " ".join(f"{number}-{k}" for k in range(20))
        messages: Any = [{"role": "user", "content": text}]
        got = ""
        async for chunk in await server.openai.chat.completions.create(model=MODEL, messages=messages, stream=True):
            got += chunk.choices[0].delta.content or ""
        return got == text

    assert all(await asyncio.gather(*(ask(number) for number in range(30))))
    assert server.engine.most_active == 3


async def _leave(server: Running, body: dict[str, Any], ready: Any) -> None:
    """Send a request and hang up when ``ready``."""
    task = asyncio.create_task(server.post("/v1/chat/completions", body))
    await until(ready)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, httpx2.HTTPError):
        await task


MESSAGE = {"messages": [{"role": "user", "content": "x"}]}
LONG = " ".join(str(k) for k in range(3000))


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_during_decoding_ends_the_work(start: Start, stream: bool) -> None:
    server = await start(ScriptedClient(lambda request: Reply(LONG, per_round=1)))
    engine = server.engine
    await _leave(server, {**MESSAGE, "stream": stream}, lambda: sum(engine.rounds_run.values()) > 3)
    await until(lambda: engine.active == 0)
    assert len(engine.cancelled) == 1 and sum(engine.rounds_run.values()) < 3000
    await until(lambda: server.app.service.admission.free)
    assert server.app.service.metrics.disconnects == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_during_prefill_ends_the_work(start: Start, stream: bool) -> None:
    gate = asyncio.Event()
    server = await start(ScriptedClient(Reply("x", prefill=5, prefill_gate=gate)))
    await _leave(server, {**MESSAGE, "stream": stream}, lambda: server.engine.active == 1)
    await until(lambda: server.engine.active == 0)
    assert len(server.engine.cancelled) == 1 and server.engine.rounds_run == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_the_queue_costs_nothing(start: Start, stream: bool) -> None:
    gate = asyncio.Event()
    server = await start(ScriptedClient(Reply("x", gate=gate)), parallel=1)
    admission = server.app.service.admission
    first = asyncio.create_task(server.chat())
    await until(lambda: admission.running == 1)
    await _leave(server, {**MESSAGE, "stream": stream}, lambda: admission.waiting == 1)
    await until(lambda: admission.waiting == 0)
    gate.set()
    assert (await first).status_code == 200
    assert len(server.engine.requests) == 1


async def test_queued_request_that_is_too_long_is_refused_at_once(start: Start) -> None:
    gate = asyncio.Event()
    server = await start(ScriptedClient(Reply("x", gate=gate)), parallel=1)
    first = asyncio.create_task(server.chat())
    await until(lambda: server.app.service.admission.running == 1)
    refused = await server.chat(messages=[{"role": "user", "content": "word " * 5000}], stream=True)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    gate.set()
    await first


async def test_headers_and_comments_come_before_the_first_token(start: Start) -> None:
    gate = asyncio.Event()
    server = await start(ScriptedClient(Reply("x", gate=gate)), parallel=1, header_delay=0.01, keep_alive=0.01)
    first = asyncio.create_task(server.chat())
    await until(lambda: server.app.service.admission.running == 1)
    async with server.http.stream("POST", "/v1/chat/completions", json={**MESSAGE, "stream": True}) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        comments = 0
        async for line in lines:
            comments += line == ": keep-alive"
            if comments == 3:
                gate.set()
            if line == "data: [DONE]":
                break
    assert comments >= 3
    assert (await first).status_code == 200


async def test_a_whole_answer_is_json_and_nothing_else_however_long_it_takes(start: Start) -> None:
    gate = asyncio.Event()
    server = await start(ScriptedClient(Reply("x", gate=gate)), header_delay=0.005, keep_alive=0.005)
    task = asyncio.create_task(server.chat())
    await until(lambda: server.engine.active == 1)
    await asyncio.sleep(0.05)
    gate.set()
    answer = await task
    assert answer.content.startswith(b"{") and int(answer.headers["content-length"]) == len(answer.content)


async def test_client_that_stops_reading_is_let_go(start: Start) -> None:
    big = ["y" * 50_000 for _ in range(2000)]
    server = await start(ScriptedClient(Reply(big, per_round=1)), write_timeout=0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    body = b'{"messages":[{"role":"user","content":"x"}],"stream":true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await until(lambda: server.engine.requests and not server.engine.active)
    assert len(server.engine.cancelled) == 1 and server.app.service.admission.free
    writer.transport.abort()
    del reader


async def test_death_of_the_engine_is_told_and_survived(start: Start) -> None:
    replies = [Reply("one two three four", dies=True, fails_at=1), Reply("fine")]
    server = await start(ScriptedClient(replies))
    stream = await server.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(openai.APIError, match="SIGKILL") as caught:
        async for _ in stream:
            pass
    assert caught.value.code == "engine_died"
    assert (await server.chat()).json()["choices"][0]["message"]["content"] == "fine"
