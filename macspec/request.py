"""What a caller asks for and what comes back: one request type for chat, bench, server and the Python API.

Everything here is plain data without MLX, so it can cross a process border: ``to_wire`` gives JSON values and
``from_wire`` restores the object.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from macspec.errors import RequestError, UnsupportedError
from macspec.field_types import check_types

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
FinishReason = Literal["stop", "length", "cancelled"]


class Wire:
    """A dataclass that can be turned into JSON values and back, nested dataclasses and tuples included."""

    def to_wire(self) -> dict[str, Any]:
        """JSON values of every field."""
        return {f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of ``to_wire``; unknown keys are an error of the sender."""
        hints = _hints(cls)
        return cls(**{key: _decode(value, hints[key]) for key, value in values.items()})


_known_hints: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    """Field types, kept: resolving them for every event of every round takes longer than everything else."""
    hints = _known_hints.get(cls)
    if hints is None:
        hints = _known_hints[cls] = typing.get_type_hints(cls)
    return hints


def _encode(value: Any) -> Any:
    if isinstance(value, Wire):
        return value.to_wire()
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return list(value)
    return value


def _decode(value: Any, hint: Any) -> Any:
    if value is None:
        return None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode(value, next(kind for kind in arguments if kind is not type(None)))
    if isinstance(hint, type) and issubclass(hint, Wire):
        return hint.from_wire(value)
    if origin is tuple:
        return tuple(_decode(item, arguments[0]) for item in value)
    if origin is dict:
        return {arguments[0](key): _decode(item, arguments[1]) for key, item in value.items()}
    if hint is bytes:
        return bytes(value)
    return value


@dataclass(frozen=True, slots=True)
class Grammar(Wire):
    """A constraint on the answer. ``value`` is the schema, pattern, grammar text, or a JSON list for ``choice``."""

    kind: GrammarKind
    value: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams(Wire):
    """How a token is chosen from the target's logits.

    Order of application: grammar and allowed/banned tokens, ``logit_bias``, penalties, temperature, ``top_k``,
    ``top_p``, ``min_p``, then the choice keyed by ``(seed, position)``. Zero temperature takes the best token.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    #: Tokens the penalties look back on, prompt included for repetition only; 0 means all of them.
    penalty_window: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)
    banned_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    #: None = off; k = log-probability of every emitted token and of the k most likely ones (at most 20).
    logprobs: int | None = None
    n: int = 1
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest(Wire):
    """One prompt to answer. Exactly one of ``messages``, ``prompt`` and ``tokens`` is given.

    ``messages`` go through the model's chat template, ``prompt`` is tokenised as it is, ``tokens`` are used unchanged.
    """

    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    tokens: tuple[int, ...] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    tools: tuple[dict[str, Any], ...] = ()
    #: Extra variables for the chat template, such as ``enable_thinking``.
    template_options: dict[str, Any] = field(default_factory=dict)
    #: The last message, the assistant's, is the beginning of the answer, which goes on from there.
    continue_final_message: bool = False
    #: None leaves thinking to the template's default.
    thinking: bool | None = None
    thinking_budget: int | None = None
    #: ``auto``, ``full`` or a number of draft tokens; ``0`` is plain decoding.
    depth: str = "auto"
    #: Which rule chooses the depth when it is ``auto``.
    policy: str = "rate"
    #: Draft with the target's own keyed noise at temperatures above zero (changes speed only); None where it pays.
    coupled: bool | None = None
    #: Plain decoding's text also where near-ties could turn; None leaves it to the engine.
    exact: bool | None = None
    #: Reuse the longest known prefix of earlier requests.
    use_cache: bool = True
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def check(self) -> None:
        """Refuse what no model could honour; raises `RequestError` with the field's name."""
        check_types(self, _hints(GenerationRequest))
        check_types(self.sampling, _hints(SamplingParams))
        if self.sampling.grammar is not None:
            check_types(self.sampling.grammar, _hints(Grammar))
        given = [name for name in ("messages", "prompt", "tokens") if getattr(self, name) is not None]
        if len(given) != 1:
            param = given[0] if given else "prompt"
            raise RequestError("Give exactly one of messages, prompt and tokens.", param=param)
        if not getattr(self, given[0]):
            raise RequestError("The prompt is empty; write something to answer.", param=given[0])
        try:
            json.dumps(self.messages or self.prompt, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise RequestError("The prompt holds bytes that are not UTF-8; convert it first.", param=given[0]) from None
        if self.continue_final_message and (self.messages is None or self.messages[-1].get("role") != "assistant"):
            raise RequestError(
                "continue_final_message goes on with the last message, so that has to be the assistant's.",
                param="continue_final_message",
            )
        if self.messages is None and (self.thinking or self.template_options):
            name = "thinking" if self.thinking else "template_options"
            raise UnsupportedError(
                f"{name} works through the chat template, which only messages go through; leave {name} out.", param=name
            )
        if self.depth not in ("auto", "full") and not (self.depth.isascii() and self.depth.isdigit()):
            raise RequestError(f"depth is {self.depth!r}; use auto, full or a number from 0 up.", param="depth")


@dataclass(frozen=True, slots=True)
class TokenInfo(Wire):
    """One emitted token. ``logprob`` and ``top`` are filled when log-probabilities were asked for."""

    id: int
    text: str = ""
    #: UTF-8 bytes of this token alone; may be part of a character.
    raw: bytes = b""
    logprob: float | None = None
    top: tuple[TokenInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Event(Wire):
    """Something that happened while a request was answered; ``index`` tells apart the answers of ``n`` > 1."""

    kind: ClassVar[str] = "event"
    index: int = 0


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The prompt is tokenised; ``cached_tokens`` of it need no work."""

    kind: ClassVar[str] = "started"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PrefillProgress(Event):
    """``done`` of ``total`` prompt tokens are in the caches."""

    kind: ClassVar[str] = "prefill"
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Text(Event):
    """New text. ``tokens`` are the ones committed since the last text event; their texts may straddle events."""

    kind: ClassVar[str] = "text"
    text: str = ""
    section: Literal["answer", "thinking"] = "answer"
    tokens: tuple[TokenInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall(Event):
    """A complete tool call parsed from the answer; ``arguments`` is JSON text."""

    kind: ClassVar[str] = "tool_call"
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Round(Event):
    """One draft-verify round. ``committed = accepted + 1`` unless the answer ended inside the block."""

    kind: ClassVar[str] = "round"
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    committed: int = 0
    reason: str = ""
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0
    #: Exact mode: near-ties decided again by one-row passes, and the time that took.
    redecided: int = 0
    redecide_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationStats(Wire):
    """Totals of one answer. Rates are tokens per second; ``generation_tps`` excludes prompt and first round."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    thinking_tokens: int = 0
    prompt_tps: float = 0.0
    generation_tps: float = 0.0
    rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    #: Tokens committed per round, bonus token included.
    acceptance_length: float = 0.0
    parked_rounds: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0
    #: Exact mode: near-ties decided again by one-row passes, and the time that took beside the three above.
    redecided: int = 0
    redecide_ms: float = 0.0
    peak_memory: int = 0


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The answer is complete. ``reason`` is ``stop``, ``length`` or ``cancelled``."""

    kind: ClassVar[str] = "finished"
    reason: FinishReason = "stop"
    #: The stop string or token text that ended the answer, if one did.
    matched_stop: str | None = None
    stats: GenerationStats = field(default_factory=GenerationStats)


EVENTS: dict[str, type[Event]] = {
    kind.kind: kind for kind in (Started, PrefillProgress, Text, ToolCall, Round, Finished)
}


def event_to_wire(event: Event) -> dict[str, Any]:
    """JSON values of an event, its kind included."""
    return {"kind": event.kind, **event.to_wire()}


def event_from_wire(values: Mapping[str, Any]) -> Event:
    """Inverse of `event_to_wire`."""
    fields = dict(values)
    return EVENTS[fields.pop("kind")].from_wire(fields)
