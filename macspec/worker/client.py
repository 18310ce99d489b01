"""How chat and server talk to the engine: one small asyncio interface.

`macspec.worker.process_client.ProcessClient` is the real one, `macspec.worker.scripted.ScriptedClient` plays a script.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Literal, Protocol

from macspec.request import Event, GenerationRequest
from macspec.worker.protocol import EngineInfo, EngineStats, LoadProgress

#: ``stopped`` before `start` and after `close`; ``loading`` also while a dead engine is being replaced; ``failed`` when
#: it could not be loaded or keeps dying, until `restart` or `load` is called.
ClientState = Literal["stopped", "loading", "ready", "failed"]

ProgressCallback = Callable[[LoadProgress], None]


class EngineClient(Protocol):
    """One engine, somewhere else. All methods belong to the event loop that called `start`."""

    @property
    def state(self) -> ClientState:
        """What the engine is doing; see `ClientState`."""

    @property
    def info(self) -> EngineInfo | None:
        """What is loaded; None before the first successful load."""

    @property
    def step_seconds(self) -> float:
        """Age of the step the engine is in, at its last sign of life; grows without end when the device is stuck."""

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """Start the engine and load; returns when it can answer. Raises `MacspecError` with the reason if it cannot."""

    def submit(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Events of one answer, from `Started` to the last `Finished` (one per answer of ``n``).

        Failures are raised as `MacspecError`. Leaving the iteration (``aclose``, a cancelled task) cancels the request.
        Slow reading slows the engine for this request only. When the engine dies before a round was delivered, the
        request is sent again to its replacement and `Started` may come a second time.
        """

    async def cancel(self, request_id: str) -> None:
        """End a request within one round; its stream ends with `Finished` of reason ``cancelled``.

        Unknown ids are fine: the request may just have ended.
        """

    async def stats(self) -> EngineStats:
        """Totals and memory now."""

    async def load(
        self, model: str | None = None, drafter: str | None = None, progress: ProgressCallback | None = None
    ) -> EngineInfo:
        """Replace the model, the drafter or both (None keeps the model and picks its default drafter).

        On failure the engine keeps what it had if it can, and the reason is raised.
        """

    async def count_tokens(self, request: GenerationRequest) -> int:
        """Prompt tokens of a request, chat template included."""

    async def tokenize(self, request: GenerationRequest) -> tuple[int, ...]:
        """Prompt token ids of a request, chat template included."""

    async def restart(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """End the engine process, start another and load the same again. Running requests fail."""

    async def close(self) -> None:
        """End the engine; running requests are cancelled. Safe to call twice."""
