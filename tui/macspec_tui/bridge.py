"""Lets straight-line code use the asyncio engine client: its loop runs in a thread of its own.

The main thread stays free to wait for a person in ``input()`` and to be interrupted by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from macspec.request import Event, GenerationRequest
from macspec.worker.client import EngineClient

T = TypeVar("T")


class Bridge:
    """Runs coroutines of one client from another thread. Use it as a context manager; leaving closes the client."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client

    def __enter__(self) -> Bridge:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-client", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        await self.client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the client's loop and wait for its result; Ctrl-C interrupts the wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def cancel(self, request: GenerationRequest) -> None:
        """Ask the engine to end a request within one round."""
        self.call(self.client.cancel(request.id))

    def events(self, request: GenerationRequest) -> Answer:
        """The events of one answer."""
        return Answer(self._loop, self.client, request)


class Answer(Iterator[Event]):
    """Iterates over events that arrive in another thread. `KeyboardInterrupt` may end a ``next`` and loses nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: EngineClient, request: GenerationRequest) -> None:
        self._events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

        async def read() -> None:
            try:
                async for event in client.submit(request):
                    self._events.put(event)
            except Exception as error:
                self._events.put(error)
            else:
                self._events.put(None)

        asyncio.run_coroutine_threadsafe(read(), loop)

    def __next__(self) -> Event:
        item = self._events.get()
        if item is None:
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        return item
