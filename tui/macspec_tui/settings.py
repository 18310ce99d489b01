"""What a chat is started with and what ``/set`` changes, and how that becomes a request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from macspec.errors import RequestError
from macspec.request import GenerationRequest, SamplingParams
from macspec_tui.conversation import Conversation


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Everything of a request but its messages."""

    model: str | None = None
    drafter: str | None = None
    depth: str = "auto"
    policy: str = "rate"
    thinking: bool | None = None
    thinking_budget: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def request(self, conversation: Conversation) -> GenerationRequest:
        """The request that answers the shown conversation. Raises `RequestError` when it is empty."""
        request = GenerationRequest(
            messages=conversation.for_template(),
            sampling=self.sampling,
            thinking=self.thinking,
            thinking_budget=self.thinking_budget,
            depth=self.depth,
            policy=self.policy,
        )
        request.check()
        return request

    def shown(self) -> list[tuple[str, str]]:
        """Names and present values of what ``/set`` can change."""
        from dataclasses import fields

        rows = [("depth", self.depth), ("policy", self.policy), ("thinking_budget", _shown(self.thinking_budget))]
        return rows + [(f.name, _shown(getattr(self.sampling, f.name))) for f in fields(self.sampling)]

    def set(self, name: str, value: str) -> ChatSettings:
        """A copy with one setting changed from its text. Raises `RequestError` that says what is allowed."""
        from macspec.cli_options import set_option

        name = name.strip().replace("-", "_").lower()
        if name == "depth":
            if value not in ("auto", "full") and not (value.isascii() and value.isdigit()):
                raise RequestError(f"depth is {value!r}; use auto, full or a number from 0 up.", param="depth")
            return replace(self, depth=value)
        if name == "policy":
            return replace(self, policy=value)
        if name == "thinking_budget":
            return replace(self, thinking_budget=_budget(value))
        return replace(self, sampling=set_option(self.sampling, name, value))


def _budget(value: str) -> int | None:
    if value in ("none", "off", "default"):
        return None
    if not (value.isascii() and value.isdigit()):
        raise RequestError(f"thinking_budget is {value!r}; use a number of tokens or none.", param="thinking_budget")
    return int(value)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (tuple, dict)):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)
