"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

from macspec.errors import RequestError
from macspec.request import Event, Finished, GenerationRequest, PrefillProgress, Started, Text, TokenInfo, ToolCall
from macspec.server import convert
from macspec.server.answers import Choice, Outcome, Service, finish_reason, logprob_value, new_id
from macspec.server.schemas import ChatBody
from macspec.server.streams import comment, frame
from macspec.server.tools import check_tools, fit_tools, plan_tools, template_tools
from macspec.worker.protocol import EngineInfo


def plan(body: ChatBody, service: Service, info: EngineInfo) -> convert.Plan:
    """What the engine is asked for. Raises `RequestError` naming the field."""
    config = service.config
    tools = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, config.max_tools)
    grammar = convert.guided_grammar(body)
    check_tools(tools, grammar, info)
    options, switch = convert.template_options(body.chat_template_kwargs)
    effort, effort_at = cast("str | None", body.reasoning_effort), "reasoning_effort"
    if body.reasoning is not None and effort is None:
        effort, effort_at = reasoning_effort(body.reasoning), "reasoning.effort"
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    sampling = replace(
        convert.sampling(body, config),
        max_tokens=convert.limit(wanted, info),
        stop=convert.stops(body.stop),
        n=convert.choices(body.n, config),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        grammar=tools.grammar or grammar,
    )
    request = GenerationRequest(
        messages=fit_tools(convert.chat_messages(body.messages, config.max_messages), tools, info),
        sampling=sampling,
        tools=template_tools(tools, info),
        template_options=convert.with_effort(options, effort, info),
        continue_final_message=convert.continues(bool(body.continue_final_message), tools, "continue_final_message"),
        thinking=convert.thinks(effort, effort_at, switch, info),
        thinking_budget=body.thinking_budget,
        depth=convert.depth(body.depth),
        use_cache=body.cache_prompt is not False,
    )
    request.check()
    return convert.Plan(request, tools)


def reasoning_effort(values: dict[str, Any]) -> str | None:
    """``reasoning.effort``, checked."""
    effort = values.get("effort")
    if effort is None and values.get("enabled") is False:
        return "none"
    if effort is not None and effort not in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        raise RequestError("reasoning.effort should be none, minimal, low, medium or high.", param="reasoning.effort")
    return cast("str | None", effort)


@dataclass(frozen=True)
class Envelope:
    """What is the same in the body or in every chunk of one answer."""

    id: str
    created: int
    model: str
    fingerprint: str

    def wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A body or chunk."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def envelope(body_model: str | None, service: Service, info: EngineInfo, prefix: str) -> Envelope:
    """A new one; the model is called what the client called it."""
    return Envelope(new_id(prefix), int(time.time()), body_model or info.model, service.fingerprint(info))


class Progress:
    """How far the prompt is, in llama.cpp's form, for clients that ask."""

    def __init__(self, wanted: bool | None) -> None:
        self._wanted, self._began = wanted, time.monotonic()

    def of(self, event: PrefillProgress, outcome: Outcome) -> dict[str, Any] | None:
        """The field of a chunk; None if nobody asked."""
        if not self._wanted:
            return None
        took = int((time.monotonic() - self._began) * 1000)
        progress = {"total": event.total, "cache": outcome.cached_tokens, "processed": event.done, "time_ms": took}
        return {"prompt_progress": progress}


async def complete(service: Service, body: ChatBody, who: str) -> dict[str, Any]:
    """The whole answer as one body."""
    info = await service.check_model(body.model)
    planned = plan(body, service, info)
    head = envelope(body.model, service, info, "chatcmpl-")
    outcome = Outcome()
    async with aclosing(cast(Any, service.events([planned], who, convert.param_names(body)))) as events:
        async for event in events:
            outcome.add(event, planned.request.sampling.n)
    choices = [_choice(index, choice, bool(body.logprobs)) for index, choice in sorted(outcome.choices.items())]
    return {**head.wrap("chat.completion", choices), "usage": outcome.usage(), "timings": outcome.timings()}


def _choice(index: int, choice: Choice, logprobs: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.thinking:
        message["reasoning_content"] = message["reasoning"] = choice.thinking
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": {"content": _logprobs(choice.tokens), "refusal": None} if logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def _logprobs(tokens: list[TokenInfo] | tuple[TokenInfo, ...]) -> list[dict[str, Any]]:
    return [{**_logprob(token), "top_logprobs": [_logprob(other) for other in token.top]} for token in tokens]


def _logprob(token: TokenInfo) -> dict[str, Any]:
    return {"token": token.text, "logprob": logprob_value(token.logprob), "bytes": list(token.raw)}


async def stream(service: Service, body: ChatBody, who: str) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events."""
    info = await service.check_model(body.model)
    planned = plan(body, service, info)
    chunks = _Chunks(envelope(body.model, service, info, "chatcmpl-"), body)
    per_prompt = planned.request.sampling.n
    outcome = Outcome()
    async with aclosing(cast(Any, service.events([planned], who, convert.param_names(body)))) as events:
        async for event in events:
            outcome.add(event, per_prompt)
            for data in chunks.of(event, outcome):
                yield data
    if chunks.usage:
        tail = chunks.head.wrap("chat.completion.chunk", [])
        yield frame({**tail, "usage": outcome.usage(), "timings": outcome.timings()})
    yield b"data: [DONE]\n\n"


class _Chunks:
    """Turns events into chunks."""

    def __init__(self, head: Envelope, body: ChatBody) -> None:
        self.head = head
        self.usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._logprobs = bool(body.logprobs)
        self._progress = Progress(body.return_progress)
        self._greeted: set[int] = set()
        self._calls: dict[int, int] = {}

    def of(self, event: Event, outcome: Outcome) -> list[bytes]:
        """The chunks for one event."""
        index = event.index
        if isinstance(event, Started):
            if index in self._greeted:
                return []
            self._greeted.add(index)
            return [self._delta(index, {"role": "assistant", "content": ""})]
        if isinstance(event, PrefillProgress):
            return [self._prefill(event, outcome)]
        if isinstance(event, Text):
            return self._text(event)
        if isinstance(event, ToolCall):
            return self._call(event)
        if isinstance(event, Finished):
            reason = finish_reason(event.reason, index in self._calls)
            return [self._delta(index, {}, finish=reason, timings=outcome.timings())]
        return []

    def _text(self, event: Text) -> list[bytes]:
        if event.section == "thinking":
            if not event.text:
                return []
            return [self._delta(event.index, {"reasoning_content": event.text, "reasoning": event.text})]
        tokens = _logprobs(event.tokens) if self._logprobs else []
        if not event.text and not tokens:
            return []
        logprobs = {"content": tokens, "refusal": None} if tokens else None
        return [self._delta(event.index, {"content": event.text}, logprobs=logprobs)]

    def _call(self, event: ToolCall) -> list[bytes]:
        number = self._calls.get(event.index, 0)
        self._calls[event.index] = number + 1
        opening = {
            "index": number,
            "id": event.call_id,
            "type": "function",
            "function": {"name": event.name, "arguments": ""},
        }
        rest = {"index": number, "function": {"arguments": event.arguments}}
        return [
            self._delta(event.index, {"tool_calls": [opening]}),
            self._delta(event.index, {"tool_calls": [rest]}),
        ]

    def _prefill(self, event: PrefillProgress, outcome: Outcome) -> bytes:
        progress = self._progress.of(event, outcome)
        return (
            comment(f"prefill {event.done}/{event.total}")
            if progress is None
            else self._delta(event.index, {}, **progress)
        )

    def _delta(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
        **extra: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self.head.wrap("chat.completion.chunk", [choice]), **extra}
        if self.usage:
            chunk["usage"] = None
        return frame(chunk)
