"""What fills the context: counted by the engine's tokenizer through the same chat template."""

from __future__ import annotations

from dataclasses import dataclass, replace

from macspec.errors import MacspecError
from macspec.worker.client import EngineClient
from macspec_tui.conversation import Conversation
from macspec_tui.settings import ChatSettings
from macspec_tui.widgets.activity import meter


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Tokens by origin. ``thinking`` counts only what the template feeds back."""

    system: int
    history: int
    thinking: int

    @property
    def used(self) -> int:
        """All of them."""
        return self.system + self.history + self.thinking

    def text(self, limit: int) -> str:
        """A small table for a context of ``limit`` tokens."""
        free = max(limit - self.used, 0)
        rows = [("system", self.system), ("messages", self.history), ("thinking", self.thinking), ("free", free)]
        lines = [meter(self.used / limit if limit else 0.0, 30)]
        lines += [f"{name:<9}{count:>9,}  {100 * count / limit if limit else 0:>5.1f} %" for name, count in rows]
        return "\n".join([*lines, f"{'limit':<9}{limit:>9,}"])


async def measure(client: EngineClient, settings: ChatSettings, conversation: Conversation) -> ContextUse:
    """Count the shown conversation. Raises `MacspecError` when the engine cannot."""
    messages = conversation.for_template()
    if not messages:
        return ContextUse(0, 0, 0)

    async def count(kept: tuple[dict[str, object], ...]) -> int:
        return await client.count_tokens(replace(settings.base, messages=kept)) if kept else 0

    everything = await count(messages)
    without_thinking = await count(
        tuple({key: value for key, value in m.items() if key != "reasoning_content"} for m in messages)
    )
    system = 0
    if conversation.system:
        try:
            rest = await count(tuple({k: v for k, v in m.items() if k != "reasoning_content"} for m in messages[1:]))
            system = without_thinking - rest if rest else without_thinking
        except MacspecError:
            # Some templates refuse a conversation without what they expect first; it counts as messages then.
            system = 0
    return ContextUse(system, without_thinking - system, everything - without_thinking)
