"""An answer while it grows: events of the engine in, a `Message` out."""

from __future__ import annotations

import time
from collections.abc import Callable

from macspec.request import Event, Finished, GenerationStats, Started, Text, ToolCall
from macspec_tui.conversation import Message


class AnswerDraft:
    """Collects one answer. ``reason`` stays empty until the answer has ended."""

    def __init__(self, parent: str | None, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.parent = parent
        self.model = model
        self.reason = ""
        self.stats: GenerationStats | None = None
        self.thinking_tokens = 0
        self._clock = clock
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._thinking_began: float | None = None
        self._thinking_ended: float | None = None

    @property
    def text(self) -> str:
        """The answer so far, without thinking."""
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        """The thinking so far."""
        return "".join(self._thinking)

    @property
    def empty(self) -> bool:
        """Whether nothing was said yet, not even in thought."""
        return not self._text and not self._thinking

    @property
    def thinking_seconds(self) -> float:
        """How long it thought, up to now while it does; 0 when it did not."""
        if self._thinking_began is None:
            return 0.0
        return (self._thinking_ended or self._clock()) - self._thinking_began

    def take(self, event: Event) -> None:
        """Account for one event."""
        if isinstance(event, Started):
            # A second start is the same request on a replacement engine: nothing was delivered of the first.
            self._text.clear()
            self._thinking.clear()
        elif isinstance(event, Text):
            self._take_text(event)
        elif isinstance(event, ToolCall):
            self._text.append(f"\n\n```json\n{event.name}({event.arguments})\n```\n")
        elif isinstance(event, Finished):
            self.reason, self.stats = event.reason, event.stats
            self._stop_thinking()

    def fail(self) -> None:
        """The engine failed; what was said so far stays."""
        self.reason = "failed"
        self._stop_thinking()

    def stop(self) -> None:
        """The person stopped the answer before the engine could say so itself."""
        self.reason = self.reason or "cancelled"
        self._stop_thinking()

    def message(self) -> Message:
        """The answer as a message of the conversation."""
        return Message(
            "assistant",
            self.text.strip("\n"),
            parent=self.parent,
            thinking=self.thinking.strip(),
            thinking_seconds=self.thinking_seconds,
            reason=self.reason,
            model=self.model,
            stats=self.stats,
        )

    def _take_text(self, event: Text) -> None:
        if event.section == "thinking":
            if self._thinking_began is None:
                self._thinking_began = self._clock()
            self._thinking.append(event.text)
            self.thinking_tokens += len(event.tokens)
            return
        if event.text:
            self._stop_thinking()
            self._text.append(event.text)

    def _stop_thinking(self) -> None:
        if self._thinking_began is not None and self._thinking_ended is None:
            self._thinking_ended = self._clock()
