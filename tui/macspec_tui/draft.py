"""An answer while it grows: events of the engine in, a `Message` out."""

from __future__ import annotations

from macspec.request import Event, Finished, GenerationStats, Round, Started, Text, ToolCall
from macspec_tui.conversation import Message
from macspec_tui.live import round_ms


class AnswerDraft:
    """Collects one answer. ``reason`` stays empty until the answer has ended."""

    def __init__(self, parent: str | None, model: str) -> None:
        self.parent = parent
        self.model = model
        self.reason = ""
        self.stats: GenerationStats | None = None
        self.thinking_tokens = 0
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._ms_before_answer = 0.0

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
        """The engine's time up to the first word of the answer, 0 when it did not think."""
        return self._ms_before_answer / 1000 if self._thinking else 0.0

    def take(self, event: Event) -> None:
        """Account for one event."""
        if isinstance(event, Started):
            # A second start is the same request on a replacement engine: nothing was delivered of the first.
            self._text.clear()
            self._thinking.clear()
            self.thinking_tokens, self._ms_before_answer = 0, 0.0
        elif isinstance(event, Round):
            if not self._text:
                self._ms_before_answer += round_ms(event)
        elif isinstance(event, Text):
            self._take_text(event)
        elif isinstance(event, ToolCall):
            self._text.append(f"\n\n```json\n{event.name}({event.arguments})\n```\n")
        elif isinstance(event, Finished):
            self.reason, self.stats = event.reason, event.stats

    def fail(self) -> None:
        """The engine failed; what was said so far stays."""
        self.reason = "failed"

    def stop(self) -> None:
        """The person stopped the answer before the engine could say so itself."""
        self.reason = self.reason or "cancelled"

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
            self._thinking.append(event.text)
            self.thinking_tokens += len(event.tokens)
        elif event.text:
            self._text.append(event.text)
