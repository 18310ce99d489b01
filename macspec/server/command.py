"""``macspec serve``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

from macspec.cli_options import add_engine_options, engine_options
from macspec.download import ensure
from macspec.errors import RequestError
from macspec.server.app import create_app
from macspec.server.config import ServerConfig
from macspec.server.status import StatusLine
from macspec.server.transport import Server, listen, make_server
from macspec.worker.client import EngineClient
from macspec.worker.protocol import EngineInfo, EngineOptions, LoadProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``macspec serve``."""
    defaults = ServerConfig()
    add_engine_options(parser)
    model = parser.add_argument_group("answers")
    model.add_argument(
        "--temperature",
        type=float,
        default=defaults.temperature,
        help="for requests that name none (default: %(default)s, the best token every time)",
    )
    model.add_argument("--alias", action="append", default=[], help="another name to serve the model under; repeatable")
    network = parser.add_argument_group("network")
    network.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    network.add_argument(
        "--port", type=_whole(0, 65535), default=defaults.port, help="default: %(default)s; 0 picks one"
    )
    network.add_argument(
        "--api-key",
        default=os.environ.get("MACSPEC_API_KEY"),
        help="key every request must carry; needed for addresses other machines can reach (or set MACSPEC_API_KEY)",
    )
    network.add_argument("--allow-host", action="append", default=[], help="host name to answer to; repeatable")
    network.add_argument("--allow-origin", action="append", default=[], help="web origin to answer; repeatable")
    load = parser.add_argument_group("load")
    load.add_argument(
        "--parallel",
        type=_whole(1),
        default=defaults.parallel,
        help="answers at the same time (default: %(default)s)",
    )
    load.add_argument(
        "--max-queue", type=_whole(0), default=defaults.max_queue, help="requests that may wait (default: %(default)s)"
    )
    parser.add_argument("--ui-log", action="store_true", help="one live status line instead of a line per request")


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def whole(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"should be {least} or more")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"should be {most} or less")
        return value

    whole.__name__ = "whole number"
    return whole


def config_from(options: argparse.Namespace) -> ServerConfig:
    """The server's configuration. Raises `RequestError` for one that would be unsafe."""
    config = ServerConfig(
        host=options.host,
        port=options.port,
        api_key=options.api_key or None,
        aliases=tuple(options.alias),
        allowed_hosts=tuple(options.allow_host),
        allowed_origins=tuple(options.allow_origin),
        temperature=options.temperature,
        parallel=options.parallel,
        max_queue=options.max_queue,
    )
    if not config.is_loopback and config.api_key is None:
        raise RequestError(
            f"Listening on {config.host} lets other machines in; give a key with --api-key, or listen on 127.0.0.1.",
            param="--host",
        )
    if not 0.0 <= config.temperature <= 2.0:
        raise RequestError(f"--temperature is {config.temperature}; use a number from 0 to 2.", param="--temperature")
    return config


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted; returns the exit code."""
    from macspec.worker.process_client import ProcessClient

    config = config_from(options)
    ensure(options)
    chosen = engine_options(options)
    known = {name: chosen.pop(name) for name in ("model", "drafter", "context") if name in chosen}
    engine = EngineOptions(**known, parallel=options.parallel, extra=chosen)
    quiet = logging.WARNING if options.ui_log else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("macspec.server").setLevel(quiet)
    with listen(config) as listener:
        asyncio.run(serve(ProcessClient(engine), config, listener, live=options.ui_log))
    return 0


async def serve(client: EngineClient, config: ServerConfig, listener: socket.socket, live: bool = False) -> None:
    """Load, announce, serve, and end everything on SIGINT or SIGTERM. Raises what loading raises."""
    app = create_app(client, config)
    server = make_server(app, config)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def stop() -> None:
        # A second signal does not wait for running answers.
        server.force_exit = server.should_exit
        server.should_exit = True
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    loading = asyncio.create_task(client.start(_tell_progress))
    # While the model loads, /health says so.
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ending = asyncio.create_task(_end_answers(client, config, stopping))
    status = StatusLine(app.service, sys.stderr)
    try:
        await asyncio.wait({loading, serving}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            _announce(loading.result(), config, listener)
            if live:
                status.start()
            await serving
    finally:
        await status.stop()
        stopping.set()
        await _close(server, serving, loading)
        ending.cancel()
        await client.close()


async def _end_answers(client: EngineClient, config: ServerConfig, stopping: asyncio.Event) -> None:
    """Some time after a stop was asked for, end the answers that still run: each tells its client."""
    await stopping.wait()
    await asyncio.sleep(config.shutdown_timeout)
    await client.close()


async def _close(server: Server, serving: asyncio.Task[None], loading: asyncio.Task[EngineInfo]) -> None:
    server.should_exit = True
    loading.cancel()
    for task in (loading, serving):
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


def _tell_progress(step: LoadProgress) -> None:
    share = f" {step.done / step.total:.0%}" if step.total else ""
    detail = f" {step.detail}" if step.detail else ""
    print(f"{step.stage}{share}{detail}", file=sys.stderr, flush=True)


def _announce(info: EngineInfo, config: ServerConfig, listener: socket.socket) -> None:
    """The three lines a user needs."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{listener.getsockname()[1]}/v1"
    drafter = f"drafter {info.drafter}" if info.drafter else f"no drafter: {info.drafter_reason or 'plain decoding'}"
    key = " -H 'authorization: Bearer KEY'" if config.api_key else ""
    message = '{"messages": [{"role": "user", "content": "Hello"}]}'
    print(f"API:      {url}")
    print(f"Model:    {info.model} ({drafter}, {info.max_context:,} tokens of context)")
    print(f"Try:      curl {url}/chat/completions -H 'content-type: application/json'{key} -d '{message}'", flush=True)
