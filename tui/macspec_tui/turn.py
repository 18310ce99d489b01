"""One answer being made: events from the engine go to the draft, the figures and the widget that shows it."""

from __future__ import annotations

from typing import Protocol

from macspec.errors import MacspecError
from macspec.request import Event, GenerationRequest, Started, Text
from macspec.worker.client import EngineClient
from macspec_tui.conversation import Message
from macspec_tui.draft import AnswerDraft
from macspec_tui.live import LiveFigures
from macspec_tui.runs import RunRecorder


class Shows(Protocol):
    """What a turn needs of the widget: to take text, and to start again."""

    def append(self, text: str, section: str) -> None:
        """Take text of the model."""

    async def restart(self) -> None:
        """Forget what was taken."""


class Turn:
    """Runs one request. ``stopping`` is set once the person has asked for its end."""

    def __init__(
        self, client: EngineClient, request: GenerationRequest, question: Message, live: LiveFigures, model: str
    ) -> None:
        self.request = request
        self.question = question
        self.draft = AnswerDraft(question.id, model)
        self.recorder = RunRecorder()
        self.stopping = False
        self._client = client
        self._live = live
        self._started = False

    async def run(self, view: Shows) -> MacspecError | None:
        """Read the answer to its end; returns the engine's failure, if it failed."""
        try:
            async for event in self._client.submit(self.request):
                await self._take(event, view)
        except MacspecError as error:
            self.draft.fail()
            return error
        # A stream that ends without a last word was cancelled from outside.
        self.draft.stop()
        return None

    async def stop(self) -> None:
        """Ask the engine to end within one round; what it said so far stays."""
        self.stopping = True
        await self._client.cancel(self.request.id)

    @property
    def keeps_answer(self) -> bool:
        """Whether the draft is worth keeping: something was said, or the model chose to say nothing."""
        return not self.draft.empty or self.draft.reason in ("stop", "length")

    async def _take(self, event: Event, view: Shows) -> None:
        self._live.take(event)
        self.draft.take(event)
        self.recorder.take(event)
        if isinstance(event, Text):
            view.append(event.text, event.section)
        elif isinstance(event, Started):
            if self._started:
                await view.restart()
            self._started = True
