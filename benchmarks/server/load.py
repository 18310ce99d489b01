"""Many streaming clients at once, some of which leave in the middle: nothing lost, nothing mixed, nothing left behind.

    python benchmarks/server/load.py --clients 64 --seconds 180 [--real]

Without ``--real`` a scripted engine answers. With it the embedded model does: each prompt's text is first asked for
alone, and every later answer to it must be equal or, for a client that left, a beginning of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

from macspec.server.app import create_app
from macspec.server.config import ServerConfig
from macspec.server.transport import listen, make_server
from macspec.worker.client import EngineClient
from macspec.worker.process_client import ProcessClient
from macspec.worker.protocol import EngineOptions
from macspec.worker.scripted import Reply, ScriptedClient


@dataclass
class Tally:
    """What the clients saw."""

    complete: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)


def scripted() -> ScriptedClient:
    """Answers derived from the prompt, so that a mixed-up one shows."""
    return ScriptedClient(lambda request: Reply(" ".join(f"{request.prompt}-{k}" for k in range(100)), delay=0.002))


def body(prompt: str) -> dict[str, Any]:
    """A seeded request at a temperature: its text does not depend on who else is served."""
    return {"prompt": prompt, "max_tokens": 24, "temperature": 0.8, "seed": 11, "stream": True, "depth": 3}


async def ask(http: httpx2.AsyncClient, prompt: str, leave_after: int | None, tally: Tally) -> str:
    """The text of one answer, or what had come when this client left."""
    text, pieces, began = "", 0, time.perf_counter()
    async with http.stream("POST", "/v1/completions", json=body(prompt)) as response:
        if response.status_code != 200:
            return f"status {response.status_code}"
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if pieces == 0:
                tally.first_bytes.append(time.perf_counter() - began)
            value = json.loads(line.removeprefix("data: "))
            if "error" in value:
                return f"error {value['error']['message']}"
            text += value["choices"][0]["text"]
            pieces += 1
            if leave_after is not None and pieces >= leave_after:
                tally.left += 1
                return text
    tally.complete += 1
    return text


async def client(http: httpx2.AsyncClient, number: int, expected: dict[str, str], until: float, tally: Tally) -> None:
    """Ask again and again."""
    chance = random.Random(number)
    while time.perf_counter() < until:
        prompt = chance.choice(list(expected))
        leave = chance.randrange(1, 10) if chance.random() < 0.3 else None
        text = await ask(http, prompt, leave, tally)
        right = expected[prompt].startswith(text) if leave is not None else expected[prompt] == text
        if not right:
            tally.wrong.append(f"{prompt!r} gave {text[:80]!r}")


async def run(engine: EngineClient, clients: int, seconds: float) -> dict[str, Any]:
    """Serve, attack, compare."""
    config = ServerConfig(port=0, shutdown_timeout=0.0, max_queue=clients)
    await engine.start()
    listener = listen(config)
    app = create_app(engine, config)
    server = make_server(app, config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    url, tally = f"http://127.0.0.1:{listener.getsockname()[1]}", Tally()
    prompts = ["The sea is", "Once upon a time", "Three colours:", "The first law"]
    limits = httpx2.Limits(max_connections=clients)
    async with httpx2.AsyncClient(base_url=url, timeout=600, verify=False, limits=limits) as http:
        expected = {prompt: await ask(http, prompt, None, Tally()) for prompt in prompts}
        before = _held()
        until = time.perf_counter() + seconds
        await asyncio.gather(*(client(http, number, expected, until, tally) for number in range(clients)))
    while not app.service.admission.free or server.server_state.tasks:
        await asyncio.sleep(0.05)
    after, stats = _held(), await engine.stats()
    server.should_exit = True
    await serving
    await engine.close()
    listener.close()
    waits = sorted(tally.first_bytes)
    return {
        "clients": clients,
        "complete": tally.complete,
        "left": tally.left,
        "wrong": tally.wrong[:5],
        "first_byte_median_s": round(statistics.median(waits), 3),
        "first_byte_p99_s": round(waits[int(len(waits) * 0.99)], 3),
        "handles": [before[0], after[0]],
        "tasks": [before[1], after[1]],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10),
        "engine_active": stats.active,
        "engine_cancelled": stats.cancelled,
    }


def _held() -> tuple[int, int]:
    """Open file handles and tasks."""
    gc.collect()
    folder = "/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"
    return len(os.listdir(folder)), len(asyncio.all_tasks())


def main() -> int:
    """Print the result as JSON; 1 if an answer was wrong or work was left behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--real", action="store_true", help="with the embedded model")
    options = parser.parse_args()
    engine: EngineClient = ProcessClient(EngineOptions()) if options.real else scripted()
    result = asyncio.run(run(engine, options.clients, options.seconds))
    print(json.dumps(result, indent=1))
    return int(bool(result["wrong"]) or result["engine_active"] > 0)


if __name__ == "__main__":
    sys.exit(main())
