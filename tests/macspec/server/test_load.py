"""Many streaming clients at once, some leaving in the middle: nothing lost, nothing mixed, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from macspec.server.admission import Admission

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Running, Start, StartTiny

PROMPTS = [f"{number} is the beginning of a text" for number in range(16)]


class WatchedAdmission(Admission):
    """Counts, for every request, how many began between its coming and its turn."""

    began = ended = 0
    #: By how many this exceeded the number that waited before it, at worst.
    overtaken = 0

    @contextlib.asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        # A turn can be given and not be taken yet.
        given = self.running - (self.began - self.ended)
        ahead, before = self.waiting + given, self.began
        async with super().slot(client):
            self.overtaken = max(self.overtaken, self.began - before - ahead)
            self.began += 1
            try:
                yield
            finally:
                self.ended += 1


@dataclass
class Tally:
    """What the clients saw."""

    complete: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """What the processes hold: resident KiB of server and clients, and of the engine; open handles; tasks."""

    server: int
    engine: int
    handles: int
    tasks: int


def held(engine: int) -> Held:
    gc.collect()
    folder = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"
    return Held(resident(os.getpid()), resident(engine), len(os.listdir(folder)), len(asyncio.all_tasks()))


def resident(process: int) -> int:
    words = ["ps", "-o", "rss=", "-p", str(process)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def body(prompt: str) -> dict[str, Any]:
    """A seeded request at a temperature: its text must not depend on who else is served."""
    return {"prompt": prompt, "max_tokens": 24, "temperature": 0.8, "seed": 11, "stream": True, "depth": 3}


async def ask(
    http: httpx2.AsyncClient, prompt: str, who: str, got: list[str], tally: Tally, most: int | None = None
) -> None:
    """Append the pieces of one answer to ``got``; with ``most`` pieces hang up."""
    began = time.perf_counter()
    headers = {"user-agent": who}
    async with http.stream("POST", "/v1/completions", json=body(prompt), headers=headers) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if not got:
                tally.first_bytes.append(time.perf_counter() - began)
            got.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
            if len(got) == most:
                raise TimeoutError


async def visitor(
    http: httpx2.AsyncClient, number: int, chance: random.Random, solo: dict[str, str], until: float, tally: Tally
) -> None:
    """Ask again and again; now and then leave at a random moment, or while reading."""
    who = f"visitor {number}"
    while time.perf_counter() < until:
        prompt, got = chance.choice(PROMPTS), list[str]()
        patience = chance.uniform(0.0, 1.5) if chance.random() < 0.15 else None
        most = chance.randrange(1, 10) if chance.random() < 0.15 else None
        try:
            await asyncio.wait_for(ask(http, prompt, who, got, tally, most), patience)
            tally.complete += 1
            right = "".join(got) == solo[prompt]
        except TimeoutError:
            tally.left += 1
            right = solo[prompt].startswith("".join(got))
        if not right:
            tally.wrong.append(f"{prompt!r} gave {''.join(got)!r} and not {solo[prompt]!r}")


@pytest.mark.parametrize(
    ("clients", "seconds"),
    [(16, 2.0), pytest.param(64, 180.0, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
async def test_visitors_that_come_and_go(
    start: Start, start_tiny: StartTiny, pair: tuple[str, str], clients: int, seconds: float
) -> None:
    server = await start_tiny(start, pair, engine="StrictEngine", max_queue=clients)
    admission = WatchedAdmission(server.app.service.config.parallel, clients)
    server.app.service.admission = admission
    client, tally, solo = server.app.service.client, Tally(), dict[str, str]()
    limits = httpx2.Limits(max_connections=clients)
    async with httpx2.AsyncClient(base_url=server.url, timeout=600, verify=False, limits=limits) as http:
        for prompt in PROMPTS:
            got: list[str] = []
            await ask(http, prompt, "alone", got, Tally())
            solo[prompt] = "".join(got)
        assert len(set(solo.values())) > len(PROMPTS) // 2
    await idle(server)
    before = held(client.pid)
    async with httpx2.AsyncClient(base_url=server.url, timeout=600, verify=False, limits=limits) as http:
        chances = [random.Random(number) for number in range(clients)]
        warm = None
        # On a busy machine a turn may end before anybody left in time for the engine to notice.
        while warm is None or not (await client.stats()).cancelled:
            until = time.perf_counter() + seconds
            visits = [visitor(http, number, chance, solo, until, tally) for number, chance in enumerate(chances)]
            work = asyncio.gather(*visits)
            await asyncio.sleep(seconds / 3)
            warm = warm or held(client.pid)
            await work
    await idle(server)
    after, stats = held(client.pid), await client.stats()
    waits = sorted(tally.first_bytes)
    print(
        f"{tally.complete} answers and {tally.left} departures in {seconds:.0f} s; first byte p50 "
        f"{waits[len(waits) // 2]:.2f} s, p99 {waits[int(len(waits) * 0.99)]:.2f} s; {before} {warm} {after} {stats}"
    )
    assert tally.wrong == [] and tally.complete > 0 and tally.left > 0
    # Nobody waited for more requests than were there before.
    assert admission.overtaken == 0 and admission.began > clients
    # The engine fails a request that it goes on with after the round in which it was cancelled.
    assert stats.failed == 0 and stats.cancelled > 0 and stats.active == 0 and stats.restarts == 0
    assert (after.handles, after.tasks) == (before.handles, before.tasks)
    if seconds > 60:
        # What is kept on purpose, such as prefixes, is there after a third of the time.
        assert after.server < warm.server + 16_384 and after.engine < warm.engine + 16_384, (warm, after)


async def idle(server: Running) -> None:
    """Wait until nothing is being answered and no connection is open."""
    state = server.server.server_state
    while not server.app.service.admission.free or state.tasks or state.connections:
        await asyncio.sleep(0.01)
