"""The real client against a real child process with a fake engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from macspec.errors import EngineDiedError, MacspecError, ModelNotFoundError, RequestError
from macspec.request import Event, Finished, GenerationRequest, Round, Started, Text
from macspec.worker.process_client import ProcessClient, ProcessOptions
from macspec.worker.protocol import WINDOW, EngineOptions, LoadProgress

HERE = str(Path(__file__).parent)


def make_client(engine: EngineOptions | None = None, **options: object) -> ProcessClient:
    process = ProcessOptions(factory="fake_engine:FakeEngine", environment={"PYTHONPATH": HERE}, **options)
    return ProcessClient(engine or EngineOptions(), process=process)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[ProcessClient]:
    client = make_client()
    await client.start()
    yield client
    await client.close()


async def answer(client: ProcessClient, prompt: str) -> list[Event]:
    return [event async for event in client.submit(GenerationRequest(prompt=prompt))]


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_answers_and_reports(client: ProcessClient) -> None:
    events = await answer(client, "a b c")
    assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
    assert text(events) == " a b c"
    assert client.state == "ready" and client.info is not None and client.info.model == "fake"
    stats = await client.stats()
    assert (stats.requests, stats.completed, stats.rounds, stats.generation_tokens) == (1, 1, 3, 3)
    assert (stats.memory_active, stats.memory_peak, stats.memory_footprint) == (123, 456, 789)
    assert stats.pid == client.pid
    assert await client.count_tokens(GenerationRequest(prompt="a bb")) == 2
    assert await client.tokenize(GenerationRequest(prompt="a bb")) == (1, 2)


async def test_load_progress_and_switch(client: ProcessClient) -> None:
    steps: list[LoadProgress] = []
    info = await client.load("other", progress=steps.append)
    assert info.model == "other" and client.info == info
    assert steps == [LoadProgress("weights", 0, 2), LoadProgress("weights", 2, 2)]
    with pytest.raises(ModelNotFoundError, match="no model 'missing'"):
        await client.load("missing")
    assert client.state == "ready"
    assert text(await answer(client, "still here")) == " still here"
    await client.restart()
    assert client.info is not None and client.info.model == "other"


async def test_output_of_libraries_does_not_disturb(client: ProcessClient) -> None:
    assert text(await answer(client, "a !print b")) == " a !print b"


async def test_two_requests_take_turns(client: ProcessClient) -> None:
    order: list[str] = []

    async def follow(name: str, prompt: str) -> None:
        async for event in client.submit(GenerationRequest(prompt=prompt, id=name)):
            if isinstance(event, Finished):
                order.append(f"{name} {event.reason}")

    endless = asyncio.create_task(follow("long", "!forever"))
    while (await client.stats()).rounds < 3:
        await asyncio.sleep(0)
    await follow("short", "a b c")
    assert order == ["short stop"]
    await client.cancel("long")
    await endless
    assert order == ["short stop", "long cancelled"]


async def test_waiting_request_can_be_cancelled() -> None:
    client = make_client(EngineOptions(parallel=1))
    await client.start()
    first = client.submit(GenerationRequest(prompt="!forever", id="first"))
    await anext(first)
    second = client.submit(GenerationRequest(prompt="a b c", id="second"))
    got = asyncio.create_task(anext(second))
    while (await client.stats()).waiting == 0:
        await asyncio.sleep(0)
    await client.cancel("second")
    events = [await got, *[event async for event in second]]
    assert events == [Finished(reason="cancelled")]
    assert (await client.stats()).active == 1
    await first.aclose()
    await client.close()


async def test_leaving_the_iteration_cancels(client: ProcessClient) -> None:
    stream = client.submit(GenerationRequest(prompt="!forever"))
    async for event in stream:
        if isinstance(event, Text):
            break
    await stream.aclose()
    while (await client.stats()).cancelled == 0:
        await asyncio.sleep(0)
    assert (await client.stats()).active == 0


async def test_slow_reader_stops_only_its_own_request(client: ProcessClient) -> None:
    stream = client.submit(GenerationRequest(prompt="!forever"))
    await anext(stream)
    while True:
        before = (await client.stats()).rounds
        await asyncio.sleep(0.05)
        if before and (await client.stats()).rounds == before:
            break
    assert before <= WINDOW
    assert text(await answer(client, "a b")) == " a b"
    count = 0
    async for event in stream:
        count += isinstance(event, Round)
        if count > 2 * WINDOW:
            break
    await stream.aclose()


@pytest.mark.parametrize("prompt", ["a !raise b", "!refuse"])
async def test_failure_reaches_only_its_request(client: ProcessClient, prompt: str) -> None:
    with pytest.raises(MacspecError) as caught:
        await answer(client, prompt)
    if prompt == "!refuse":
        assert isinstance(caught.value, RequestError) and caught.value.param == "temperature"
    else:
        assert "ValueError: boom" in caught.value.message
    assert text(await answer(client, "next")) == " next"
    assert (await client.stats()).failed == 1


async def test_killed_engine_is_replaced_and_says_so(client: ProcessClient) -> None:
    pid = client.pid
    assert pid is not None
    killed = False
    with pytest.raises(EngineDiedError, match="ended by SIGKILL. Send the request again"):
        async for event in client.submit(GenerationRequest(prompt="!forever")):
            # Only what a reader has seen rules out a replay.
            if isinstance(event, Text) and not killed:
                killed = True
                os.kill(pid, signal.SIGKILL)
    assert text(await answer(client, "next")) == " next"
    assert client.pid != pid and (await client.stats()).restarts == 1


async def test_killed_from_outside_while_idle(client: ProcessClient) -> None:
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    while client.state == "ready":
        await asyncio.sleep(0)
    assert text(await answer(client, "next")) == " next"


async def test_metal_abort_names_the_reason(client: ProcessClient) -> None:
    with pytest.raises(EngineDiedError, match="memory ran out"):
        await answer(client, "a !abort")
    assert text(await answer(client, "next")) == " next"


async def test_output_in_small_pieces_is_kept_by_lines(client: ProcessClient) -> None:
    # As the stacks of a crash are written: were every piece a line, they would push out the driver's message.
    with pytest.raises(EngineDiedError, match="memory ran out"):
        await answer(client, "a !crumbs")


@pytest.mark.parametrize("how", ["close", "restart", "start", "load"])
@pytest.mark.parametrize("steps", [0, 3, 30])
async def test_a_dead_engine_is_not_replaced_twice_or_after_the_end(how: str, steps: int) -> None:
    client = make_client()
    await client.start()
    with pytest.raises(EngineDiedError):
        await answer(client, "a !kill")
    for _ in range(steps):
        await asyncio.sleep(0)
    await getattr(client, how)()
    if how != "close":
        assert client.state == "ready" and text(await answer(client, "x")) == " x"
        assert len(_children()) == 1
        await client.close()
    assert client.state == "stopped" and _children() == []


@pytest.mark.parametrize("steps", [0, 1, 3, 10, 100])
async def test_closing_ends_a_start_and_whoever_waits_for_it(steps: int) -> None:
    client = make_client()
    starting = asyncio.create_task(client.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    await client.close()
    if steps:
        with pytest.raises(EngineDiedError, match="before it was ready"):
            await starting
    else:
        # It had not begun: the engine is started after it was closed.
        await starting
        await client.close()
    assert client.state == "stopped" and _children() == []


async def test_a_cancelled_start_leaves_no_process() -> None:
    for steps in (1, 3, 10, 100):
        client = make_client()
        starting = asyncio.create_task(client.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await client.close()
        assert _children() == []


async def test_a_request_that_waits_for_a_replacement_is_told_when_there_will_be_none(tmp_path: Path) -> None:
    client = make_client()
    await client.start()
    asking = asyncio.create_task(answer(client, f"!once:{tmp_path / 'mark'} b"))
    while client.state == "ready":
        await asyncio.sleep(0)
    await client.close()
    with pytest.raises(EngineDiedError):
        await asking


def _children() -> list[int]:
    """Engine processes of this one that are alive."""
    words = ["pgrep", "-P", str(os.getpid()), "-f", "macspec.worker.process"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


async def test_request_is_replayed_when_nothing_was_delivered(client: ProcessClient, tmp_path: Path) -> None:
    events = await answer(client, f"!once:{tmp_path / 'mark'} b")
    assert text(events).endswith(" b")
    assert (await client.stats()).restarts == 1


async def test_prompt_that_kills_is_replayed_once_only(client: ProcessClient) -> None:
    with pytest.raises(EngineDiedError):
        await answer(client, "!kill")
    assert text(await answer(client, "next")) == " next"
    assert (await client.stats()).restarts == 2


async def test_gives_up_after_deaths_in_a_row(client: ProcessClient) -> None:
    for _ in range(2):
        with pytest.raises(EngineDiedError):
            await answer(client, "a !kill")
    with pytest.raises(EngineDiedError):
        await answer(client, "a !kill")
    assert client.state == "failed"
    with pytest.raises(EngineDiedError, match="SIGKILL"):
        await answer(client, "a")
    await client.restart()
    assert text(await answer(client, "a")) == " a"


@pytest.mark.parametrize("deaths", [1, 2])
async def test_a_replacement_that_dies_while_it_loads_is_replaced_until_deaths_are_too_many(
    tmp_path: Path, deaths: int
) -> None:
    client = make_client(EngineOptions(model=f"{tmp_path}/"))
    await client.start()
    for number in range(deaths):
        (tmp_path / str(number)).touch()
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    while client.state == "ready":
        await asyncio.sleep(0)
    if deaths == 1:
        assert text(await answer(client, "a")) == " a"
        assert (await client.stats()).restarts == 2
    else:
        for _ in range(2):
            with pytest.raises(EngineDiedError, match="SIGKILL. That was 3 times in a row") as caught:
                await answer(client, "a")
            assert "again." not in caught.value.message
        assert client.state == "failed" and client.pid is None
        await client.restart()
        assert text(await answer(client, "a")) == " a"
    await client.close()


async def test_a_request_waits_through_a_replacement_that_dies(tmp_path: Path) -> None:
    client = make_client(EngineOptions(model=f"{tmp_path}/"))
    await client.start()
    (tmp_path / "death").touch()
    assert text(await answer(client, f"!once:{tmp_path.parent / (tmp_path.name + '-mark')} b")).endswith(" b")
    await client.close()


@pytest.mark.parametrize("again", [True, False])
async def test_an_engine_ended_while_it_is_replaced_is_not_replaced_twice(tmp_path: Path, again: bool) -> None:
    client = make_client()
    await client.start()
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    while client.state == "ready" or client.pid is None:
        await asyncio.sleep(0)
    await (client.restart() if again else client.close())
    assert client.state == ("ready" if again else "stopped")
    pid = client.pid
    await asyncio.sleep(0)
    assert client.pid == pid and (pid is not None) is again
    await client.close()


@pytest.mark.parametrize(
    ("model", "match"),
    [("missing", "no model 'missing'"), ("broken", "cannot be used"), ("kill", "SIGKILL"), ("exit", "terrible")],
)
async def test_failing_start_raises_the_reason(model: str, match: str) -> None:
    client = make_client(EngineOptions(model=model))
    with pytest.raises(MacspecError, match=match):
        await client.start()
    assert client.state == "failed" and client.pid is None
    with pytest.raises(MacspecError, match=match):
        await answer(client, "a")
    await client.close()


async def test_stuck_step_is_ended() -> None:
    client = make_client(stall_seconds=1.5, close_seconds=0.2)
    await client.start()
    with pytest.raises(EngineDiedError, match="did not finish a step"):
        await answer(client, "a !hang")
    assert text(await answer(client, "next")) == " next"
    await client.close()


async def test_close_ends_process_and_streams() -> None:
    client = make_client(close_seconds=0.5)
    await client.start()
    pid = client.pid
    assert pid is not None
    stream = client.submit(GenerationRequest(prompt="a !hang"))
    await anext(stream)
    await client.close()
    assert not alive(pid)
    with pytest.raises(EngineDiedError, match="closed"):
        async for _ in stream:
            pass
    await client.close()
    with pytest.raises(EngineDiedError, match="not running"):
        await answer(client, "a")


async def test_same_id_twice_is_refused(client: ProcessClient) -> None:
    stream = client.submit(GenerationRequest(prompt="!forever", id="x"))
    await anext(stream)
    with pytest.raises(RequestError, match="already running"):
        await anext(client.submit(GenerationRequest(prompt="a", id="x")))
    await stream.aclose()


def test_engine_ends_when_the_parent_is_killed() -> None:
    code = f"""
import asyncio, os, sys
sys.path.insert(0, {HERE!r})
from test_process_client import make_client
async def main():
    client = make_client()
    await client.start()
    print(client.pid, flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while alive(child) and b"Z" not in _status(child):
        os.sched_yield()


def _status(pid: int) -> bytes:
    """A dead child nobody collects stays as a zombie in a container without an init."""
    try:
        return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False).stdout
    except OSError:
        return b""
