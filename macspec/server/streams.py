"""Server-sent events, and noticing that a client is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from macspec.server.body import ClientGone
from macspec.server.config import ServerConfig

T = TypeVar("T")

KEEP_ALIVE = b": keep-alive\n\n"


def frame(data: Any, event: str | None = None) -> bytes:
    """One event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    head = f"event: {event}\n" if event is not None else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


def comment(text: str) -> bytes:
    """A line clients skip."""
    return f": {text}\n\n".encode()


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``; if the client leaves first, it is cancelled and `ClientGone` raised."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


class EventStream:
    """An ASGI response that sends frames as they come.

    The status line waits a moment for the first frame, so that a request which is refused gets its own status. Later
    failures become a last frame, made by ``tell``. Silence is filled with comments, and everything ends when the client
    leaves or takes nothing for too long.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        tell: Callable[[Exception], bytes],
        config: ServerConfig,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self._frames, self._tell, self._config = frames, tell, config
        self._headers = headers or []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises what happens before the status line is out."""
        gone = asyncio.ensure_future(_disconnected(receive))
        pending: asyncio.Future[bytes] | None = None
        started = False

        async def write(data: bytes, more: bool = True) -> None:
            async with asyncio.timeout(self._config.write_timeout):
                await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            while True:
                pending = asyncio.ensure_future(anext(self._frames))
                patience = self._config.keep_alive if started else self._config.header_delay
                while not pending.done():
                    await asyncio.wait({pending, gone}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                    if gone.done():
                        raise ClientGone
                    if not pending.done():
                        started = started or await self._start(send)
                        await write(KEEP_ALIVE)
                        patience = self._config.keep_alive
                try:
                    data = pending.result()
                except StopAsyncIteration:
                    break
                except Exception as error:
                    if not started:
                        raise
                    data = self._tell(error)
                    await write(data)
                    break
                started = started or await self._start(send)
                await write(data)
            started = started or await self._start(send)
            await write(b"", more=False)
        except TimeoutError:
            raise ClientGone from None
        finally:
            await _end(*([gone] if pending is None else [gone, pending]))
            await self._frames.aclose()

    async def _start(self, send: Send) -> bool:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            # Buffering proxies would hold the tokens back.
            (b"x-accel-buffering", b"no"),
            *self._headers,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        return True
