"""What a chat asks the engine with: everything of a request but its messages, and how ``/set`` changes it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, fields, replace
from typing import Any

from macspec.errors import RequestError
from macspec.request import GenerationRequest
from macspec.worker.protocol import EngineInfo
from macspec_tui import figures
from macspec_tui.conversation import Conversation

#: Fields of a request that ``/set`` changes besides the sampling parameters.
OWN_FIELDS = ("depth", "policy", "coupled", "use_cache", "thinking", "thinking_budget", "template_options")
#: Those of them that are on, off or left to the engine.
AUTO_FIELDS = ("coupled", "thinking")
#: Sampling parameters that mean nothing in a chat of one answer per turn.
HIDDEN_FIELDS = ("n", "logprobs")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """A request without messages that every turn starts from."""

    base: GenerationRequest = field(default_factory=GenerationRequest)

    @property
    def thinking(self) -> bool | None:
        """Whether the model thinks first; None leaves it to the model's template."""
        return self.base.thinking

    def request(self, conversation: Conversation, info: EngineInfo | None = None) -> GenerationRequest:
        """The request that answers the shown conversation. Raises `RequestError` when it is empty.

        A depth that was set for another model is left to a model without a drafter, which `without_drafter` explains.
        """
        request = replace(self.base, messages=conversation.for_template(), id=secrets.token_hex(8))
        if self.without_drafter(info):
            request = replace(request, depth="auto")
        request.check()
        return request

    def shown(self) -> list[tuple[str, str]]:
        """Names and present values of what ``/set`` can change."""
        rows = [
            (name, _shown(getattr(self.base, name), "auto" if name in AUTO_FIELDS else "none")) for name in OWN_FIELDS
        ]
        sampling = self.base.sampling
        return rows + [
            (f.name, _shown(getattr(sampling, f.name))) for f in fields(sampling) if f.name not in HIDDEN_FIELDS
        ]

    def known(self) -> list[tuple[str, str]]:
        """Names ``/set`` takes, each with its present value where it has one of its own."""
        from macspec.cli_options import option_names

        values = dict(self.shown())
        return [(name, values.get(name, "")) for name in option_names() if name not in HIDDEN_FIELDS]

    def set(self, name: str, value: str) -> ChatSettings:
        """A copy with one setting changed from its text. Raises `RequestError` that says what is allowed."""
        from macspec.cli_options import set_option

        name = name.strip().replace("-", "_").lower()
        if name in HIDDEN_FIELDS:
            raise RequestError(f"{name} has no use in a chat, which shows one answer per turn.", param=name)
        known = [entry for entry, _ in self.known()]
        if name not in (*known, "grammar"):
            raise RequestError(f"There is no setting {name!r}; use one of {', '.join(known)}.", param=name)
        return ChatSettings(set_option(self.base, name, value))

    def without_drafter(self, info: EngineInfo | None) -> str:
        """Why answers come at plain speed although these settings allow drafting; empty where nothing is amiss."""
        return figures.without_drafter(info) if info is not None and self.base.depth != "0" else ""

    def with_thinking(self, thinking: bool | None) -> ChatSettings:
        """A copy with thinking on, off or left to the model."""
        return ChatSettings(replace(self.base, thinking=thinking))


def _shown(value: Any, nothing: str = "none") -> str:
    if value is None:
        return nothing
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (tuple, dict)):
        return ", ".join(str(item) for item in (value.items() if isinstance(value, dict) else value)) or "none"
    return str(value)
