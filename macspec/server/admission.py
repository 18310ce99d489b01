"""The waiting line: so many answers at once, so many waiting, and no client before another that waited less often."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator

from macspec.server.errors import QueueFullError


class Admission:
    """A bounded fair queue in front of the engine.

    Clients take turns: one that sends thirty requests does not push another one's single request behind all of them.
    """

    def __init__(self, slots: int, limit: int) -> None:
        self._slots, self._limit = slots, limit
        self.running = 0
        self.waiting = 0
        #: Seconds an answer took of late, for the estimate in ``Retry-After``.
        self._typical = 5.0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def free(self) -> bool:
        """Whether a request would start at once."""
        return self.running < self._slots and not self.waiting

    @contextlib.asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises `QueueFullError` at once if too many wait already."""
        if not self.free:
            await self._wait(client)
        else:
            self.running += 1
        began = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            took = asyncio.get_running_loop().time() - began
            self._typical += 0.2 * (took - self._typical)
            self.running -= 1
            self._call_next()

    async def _wait(self, client: str) -> None:
        if self.waiting >= self._limit:
            seconds = math.ceil(self._typical * (self.waiting + 1) / self._slots)
            raise QueueFullError(
                f"{self.waiting} requests are waiting already; try again later.",
                retry_after=max(1, min(60, seconds)),
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # Its turn came in the same moment; pass it on.
                self.running -= 1
                self._call_next()
            else:
                self._remove(client, turn)
            raise

    def _remove(self, client: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(client)
        if line is not None and turn in line:
            line.remove(turn)
            self.waiting -= 1
            if not line:
                del self._lines[client]

    def _call_next(self) -> None:
        while self._lines and self.running < self._slots:
            client, line = self._lines.popitem(last=False)
            turn = line.popleft()
            self.waiting -= 1
            if line:
                # The client goes behind the others.
                self._lines[client] = line
            if not turn.done():
                self.running += 1
                turn.set_result(None)
