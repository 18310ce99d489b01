"""A real uvicorn on loopback in the test's own loop, in front of a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio

from macspec.server.app import Application, create_app
from macspec.server.config import ServerConfig
from macspec.server.transport import Server, listen, make_server
from macspec.worker.process_client import ProcessClient, ProcessOptions
from macspec.worker.protocol import EngineOptions
from macspec.worker.scripted import ScriptedClient

TESTS = str(Path(__file__).parents[2])


class Running:
    """A server under test."""

    def __init__(self, engine: ScriptedClient, app: Application, server: Server, port: int) -> None:
        self.engine, self.app, self.server, self.port = engine, app, server, port
        self.url = f"http://127.0.0.1:{port}"
        # Reading the machine's certificates takes longer than a whole test, and loopback needs none.
        self.http = httpx2.AsyncClient(base_url=self.url, timeout=120, verify=False)
        self.openai = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="x", max_retries=0, timeout=120, http_client=self.http
        )

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """POST JSON."""
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return await self.http.post(path, content=content, headers={"content-type": "application/json", **headers})

    async def chat(self, **fields: Any) -> httpx2.Response:
        """A chat request with a default message."""
        return await self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **fields})

    async def sse(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All data objects of a stream, without [DONE]."""
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    async def raw(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Everything the server says to these bytes until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            if half_close:
                with contextlib.suppress(OSError):
                    writer.write_eof()
            async with asyncio.timeout(20):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


Start = Callable[..., Awaitable[Running]]


@contextlib.asynccontextmanager
async def _starter() -> AsyncIterator[Start]:
    stack = contextlib.AsyncExitStack()

    async def start_one(engine: Any = None, *, load: bool = True, **config: Any) -> Running:
        engine = engine or ScriptedClient()
        if load:
            await engine.start()
        settings = ServerConfig(port=0, **{"shutdown_timeout": 0.0, **config})
        listener = listen(settings)
        app = create_app(engine, settings)
        server = make_server(app, settings)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.001)
        running = Running(engine, app, server, listener.getsockname()[1])

        async def stop() -> None:
            await running.http.aclose()
            server.should_exit = True
            await task
            await engine.close()
            listener.close()

        stack.push_async_callback(stop)
        return running

    async with stack:
        yield start_one


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    """Start servers; they are stopped after the test."""
    async with _starter() as starter:
        yield starter


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def start_once() -> AsyncIterator[Start]:
    """Start servers for all tests of a module."""
    async with _starter() as starter:
        yield starter


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a tiny target and of a random drafter for it."""
    from tiny_drafters import write_dflash
    from tiny_engine import write_target

    folder = tmp_path_factory.mktemp("models")
    target = write_target(folder / "tiny")
    config = json.loads((target / "config.json").read_text())
    write_dflash(folder / "drafter", config, target_layer_ids=[0, 1])
    return str(target), str(folder / "drafter")


StartTiny = Callable[..., Awaitable[Running]]


@pytest.fixture(scope="session")
def start_tiny() -> StartTiny:
    """Start a server in front of an engine process with a `pair`."""

    async def start_tiny(start: Start, pair: tuple[str, str], engine: str = "TinyEngine", **config: Any) -> Running:
        process = ProcessOptions(factory=f"tiny_factory:{engine}", environment={"PYTHONPATH": TESTS})
        client = ProcessClient(EngineOptions(model=pair[0], drafter=pair[1]), process=process)
        await client.start()
        return await start(client, load=False, **config)

    return start_tiny


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
