"""The Python interface: load a pair, stream or collect answers."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from macspec.engine.loop import Engine
from macspec.request import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    GenerationStats,
    SamplingParams,
    Started,
    Text,
    TokenInfo,
    ToolCall,
)
from macspec.runtime import Runtime

#: What can be answered: a request, a user's text, or a conversation.
Prompt = GenerationRequest | str | Sequence[dict[str, Any]]

#: What a request that is made of a text or messages can be given beside them.
_SAMPLING_FIELDS = {field.name for field in dataclasses.fields(SamplingParams)}
_REQUEST_FIELDS = {field.name for field in dataclasses.fields(GenerationRequest)}
_REQUEST_FIELDS -= {"messages", "prompt", "tokens", "sampling"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. ``text`` leaves out what the model thought; that is in ``thinking``."""

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    stats: GenerationStats
    seed: int
    thinking: str = ""
    token_infos: tuple[TokenInfo, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    matched_stop: str | None = None


def load(model: str | None = None, drafter: str | None = None, **options: Any) -> Runtime:
    """Load a pair; None takes the best known one. See `macspec.engine.load.load_pair` for the options."""
    return Runtime.load(model, drafter, **options)


def stream(engine: Engine, request: Prompt, **fields: Any) -> Iterator[Event]:
    """Events of an answer as they happen.

    Args:
        request: a whole `GenerationRequest`; or a text, which is one user message; or messages of a conversation.
        fields: of the `GenerationRequest` or its `SamplingParams` that is made of a text or messages; ``depth`` may be
            a number.
    """
    return engine.generate(_as_request(request, fields))


def generate(engine: Engine, request: Prompt, **fields: Any) -> Answer:
    """The first answer to a request, complete; arguments as for `stream`. For ``n`` > 1 use `answers`."""
    return answers(engine, request, **fields)[0]


def answers(engine: Engine, request: Prompt, **fields: Any) -> list[Answer]:
    """All ``n`` answers to a request; arguments as for `stream`."""
    return collect(stream(engine, request, **fields))


def collect(events: Iterator[Event]) -> list[Answer]:
    """Gather events into answers, in order of their index."""
    parts: dict[int, _Parts] = {}
    for event in events:
        parts.setdefault(event.index, _Parts()).add(event)
    return [parts[index].answer() for index in sorted(parts)]


class _Parts:
    """An answer being gathered."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []
        self.tokens: list[TokenInfo] = []
        self.calls: list[ToolCall] = []
        self.seed = 0
        self.end: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Started():
                self.seed = event.seed
            case Text():
                (self.thinking if event.section == "thinking" else self.text).append(event.text)
                self.tokens.extend(event.tokens)
            case ToolCall():
                self.calls.append(event)
            case Finished():
                self.end = event

    def answer(self) -> Answer:
        end = self.end or Finished(reason="cancelled")
        return Answer(
            text="".join(self.text),
            tokens=[token.id for token in self.tokens],
            finish_reason=end.reason,
            stats=end.stats,
            seed=self.seed,
            thinking="".join(self.thinking),
            token_infos=tuple(self.tokens),
            tool_calls=tuple(self.calls),
            matched_stop=end.matched_stop,
        )


def _as_request(request: Prompt, given: dict[str, Any]) -> GenerationRequest:
    if isinstance(request, GenerationRequest):
        if given:
            raise TypeError(f"{next(iter(given))} belongs into the GenerationRequest when one is given")
        return request
    own = {name: given.pop(name) for name in _REQUEST_FIELDS & given.keys()}
    unknown = next((name for name in given if name not in _SAMPLING_FIELDS), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, sorted(_REQUEST_FIELDS | _SAMPLING_FIELDS), 1)
        raise TypeError(f"there is no parameter {unknown!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if isinstance(depth := own.get("depth"), int):
        own["depth"] = str(depth)
    messages = ({"role": "user", "content": request},) if isinstance(request, str) else tuple(request)
    return GenerationRequest(messages=messages, sampling=SamplingParams(**given), **own)
