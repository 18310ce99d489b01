"""The live status line of ``macspec serve --ui-log``."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TextIO

from macspec.errors import MacspecError
from macspec.server.answers import Service
from macspec.worker.protocol import EngineStats

#: Seconds between updates on a terminal, and elsewhere, where each is a line of its own.
LIVE, PLAIN = 0.5, 10.0


class StatusLine:
    """Writes what the server is doing, over and over on the same line of a terminal."""

    def __init__(self, service: Service, out: TextIO) -> None:
        self._service, self._out = service, out
        self._task: asyncio.Task[None] | None = None
        self._terminal = out.isatty()

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop, leaving the cursor on a line of its own."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._terminal:
            self._out.write("\n")

    async def _run(self) -> None:
        before, every = EngineStats(), LIVE if self._terminal else PLAIN
        while True:
            await asyncio.sleep(every)
            try:
                now = await self._service.client.stats()
            except MacspecError:
                now = before
            text = self.text(before, now, every)
            before = now
            self._out.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
            self._out.flush()

    def text(self, before: EngineStats, now: EngineStats, seconds: float) -> str:
        """The line: load now, speed since the last update, and what drafting did in that time."""
        admission = self._service.admission
        tokens, rounds = now.generation_tokens - before.generation_tokens, now.rounds - before.rounds
        parts = [f"{admission.running} running", f"{admission.waiting} waiting"]
        if rounds > 0:
            depth = (now.verified - before.verified) / rounds
            parts += [f"{tokens / seconds:.0f} tok/s", f"{tokens / rounds:.2f} tokens a round", f"depth {depth:.1f}"]
        else:
            parts.append("idle" if not admission.running else self._service.client.state)
        parts.append(f"{now.completed} answered")
        if now.restarts:
            parts.append(f"{now.restarts} engine restarts")
        return " · ".join(parts)
