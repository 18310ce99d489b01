"""What the HTTP layer costs: CPU time per round in the server process, and the rate it could carry.

    python benchmarks/server/overhead.py --rounds 2000

A scripted engine commits three tokens a round as fast as it is read, so everything measured is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import time
import urllib.request
from typing import Any

from macspec.server.app import create_app
from macspec.server.config import ServerConfig
from macspec.server.transport import listen, make_server
from macspec.worker.scripted import Reply, ScriptedClient


def client(port: int, results: Any) -> None:
    """Read one stream to its end in another process."""
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    began, count = time.perf_counter(), 0
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        for line in response:
            count += line.startswith(b"data: {")
    results.put((time.perf_counter() - began, count))


async def measure(rounds: int) -> dict[str, Any]:
    """Serve one stream and take the time."""
    config = ServerConfig(port=0, shutdown_timeout=0.0)
    engine = ScriptedClient(Reply([" word"] * (3 * rounds)), info=_info(10 * rounds))
    await engine.start()
    listener = listen(config)
    server = make_server(create_app(engine, config), config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    reader = context.Process(target=client, args=(listener.getsockname()[1], results))
    reader.start()
    while not engine.active:
        await asyncio.sleep(0.001)
    cpu = time.process_time()
    seconds, chunks = await asyncio.to_thread(results.get)
    cpu = time.process_time() - cpu
    await asyncio.to_thread(reader.join)
    server.should_exit = True
    await serving
    listener.close()
    return {
        "machine": f"{platform.system()} {platform.machine()} {platform.processor()}".strip(),
        "rounds": rounds,
        "chunks": chunks,
        "cpu_ms_per_round": round(1000 * cpu / rounds, 3),
        "tokens_per_second": round(3 * rounds / seconds),
    }


def _info(context: int) -> Any:
    from dataclasses import replace

    from macspec.worker.scripted import DEFAULT_INFO

    return replace(DEFAULT_INFO, max_context=context)


def main() -> None:
    """Print the measurement as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    print(json.dumps(asyncio.run(measure(parser.parse_args().rounds))))


if __name__ == "__main__":
    main()
