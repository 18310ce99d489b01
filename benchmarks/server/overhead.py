"""What the way through HTTP costs: streamed tokens a second against the engine's own, and the server's CPU time.

    python benchmarks/server/overhead.py --prompts 3 --tokens 64

All prompts are answered in the order A B B A: by an engine alone in a process, and over HTTP, where server, engine and
client are a process each. Nothing is taken from a prefix cache, and the depth is fixed, so that all ways do the same
work. Rates count from the request to its end, prompt and connection included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sys
import time
import urllib.request
from typing import Any

from macspec.request import GenerationRequest, SamplingParams
from macspec.server.app import create_app
from macspec.server.config import ServerConfig
from macspec.server.transport import listen, make_server
from macspec.worker.process_client import ProcessClient
from macspec.worker.protocol import EngineOptions

PROMPTS = [
    "Explain why the sky is blue.",
    "Write a Python function that reverses a list.",
    "Tell me a short story about a fox and a raven.",
    "What should one see in Rome in two days?",
    "List five uses of a paper clip.",
]


def alone(pipe: Any, drafter: str | None, requests: list[dict[str, Any]]) -> None:
    """Answer requests with an engine in this process: seconds, tokens and text of each."""
    from macspec.api import collect
    from macspec.runtime import Runtime

    engine = Runtime.load(drafter=drafter, profile=False)
    found = []
    for asked in requests:
        request = GenerationRequest.from_wire(asked)
        began = time.perf_counter()
        answer = collect(engine.generate(request))[0]
        found.append((time.perf_counter() - began, answer.stats.generation_tokens, answer.text))
    engine.close()
    pipe.send(found)


def through_http(pipe: Any, url: str, bodies: list[dict[str, Any]]) -> None:
    """Read streams to their end: seconds, tokens and text of each, and the rounds of all."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found, rounds = [], 0
    for asked in bodies:
        request = urllib.request.Request(url, json.dumps(asked).encode(), {"content-type": "application/json"})
        text, last, began = "", {}, time.perf_counter()
        with opener.open(request) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    last = json.loads(line.removeprefix(b"data: "))
                    text += "".join(choice["delta"].get("content", "") for choice in last["choices"])
        found.append((time.perf_counter() - began, last["usage"]["completion_tokens"], text))
        rounds += last["timings"]["rounds"]
    pipe.send((found, rounds))


def body(prompt: str, tokens: int, depth: str) -> dict[str, Any]:
    """The request as a client sends it."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "depth": depth,
        "cache_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def wire(prompt: str, tokens: int, depth: str) -> dict[str, Any]:
    """The same request as the engine gets it."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    messages = ({"role": "user", "content": prompt},)
    return GenerationRequest(messages=messages, sampling=sampling, depth=depth, use_cache=False).to_wire()


async def in_child(work: Any, *words: Any) -> Any:
    """What this function sends from a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *words))
    process.start()
    found = await asyncio.to_thread(ours.recv)
    await asyncio.to_thread(process.join)
    return found


async def over_http(drafter: str | None, bodies: list[dict[str, Any]]) -> tuple[list[Any], float]:
    """Serve them twice: what the client saw, and this process's CPU milliseconds a round."""
    config = ServerConfig(port=0, shutdown_timeout=0.0)
    served = ProcessClient(EngineOptions(drafter=drafter, extra={"profile": False}))
    await served.start()
    with listen(config) as listener:
        server = make_server(create_app(served, config), config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        await in_child(through_http, url, bodies[:1])
        cpu = time.process_time()
        (first, rounds), (second, more) = [await in_child(through_http, url, bodies) for _ in range(2)]
        cpu = 1000 * (time.process_time() - cpu) / (rounds + more)
        server.should_exit = True
        await serving
    await served.close()
    return [first, second], cpu


async def measure(prompts: list[str], tokens: int, depth: str, drafter: str | None) -> dict[str, Any]:
    """All of it."""
    requests = [wire(prompt, tokens, depth) for prompt in prompts]
    before = await in_child(alone, drafter, [requests[0], *requests])
    served, cpu = await over_http(drafter, [body(prompt, tokens, depth) for prompt in prompts])
    after = await in_child(alone, drafter, [requests[0], *requests])
    # The first request of a process only warms it up.
    passes = [before[1:], *served, after[1:]]
    speeds = [sum(count for _, count, _ in found) / sum(seconds for seconds, _, _ in found) for found in passes]
    engine, http = (speeds[0] + speeds[3]) / 2, (speeds[1] + speeds[2]) / 2
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "depth": depth,
        "engine_tokens_per_second": [round(speeds[0], 2), round(speeds[3], 2)],
        "http_tokens_per_second": [round(speeds[1], 2), round(speeds[2], 2)],
        "ratio": round(http / engine, 4),
        "server_cpu_ms_per_round": round(cpu, 3),
        "same_text": len({tuple(text for _, _, text in found) for found in passes}) == 1,
    }


def main() -> int:
    """Print the measurement as JSON; 1 if a text differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=3, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--depth", default="3", help="draft tokens per round, full or 0 (default 3)")
    parser.add_argument("--drafter", help="none, or the name of one (default: the model's own)")
    options = parser.parse_args()
    result = asyncio.run(measure(PROMPTS[: options.prompts], options.tokens, options.depth, options.drafter))
    print(json.dumps(result))
    return int(not result["same_text"])


if __name__ == "__main__":
    sys.exit(main())
