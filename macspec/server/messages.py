"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's shape of the same thing."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

from macspec.errors import RequestError
from macspec.request import Event, Finished, GenerationRequest, PrefillProgress, SamplingParams, Started, Text, ToolCall
from macspec.server import convert
from macspec.server.answers import Choice, Outcome, Service, new_id
from macspec.server.config import ServerConfig
from macspec.server.fields import as_text
from macspec.server.schemas import CountTokensBody, MessagesBody
from macspec.server.streams import comment, frame
from macspec.server.tools import ToolPlan, check_tools, fit_tools, make_tool, plan_tools, template_tools
from macspec.worker.protocol import EngineInfo

PARAM_NAMES = {"stop": "stop_sequences", "thinking_budget": "thinking.budget_tokens", "grammar": "tools"}


def plan(body: MessagesBody, service: Service, info: EngineInfo) -> convert.Plan:
    """What the engine is asked for."""
    config = service.config
    tools = _tools(body.tools, body.tool_choice, config)
    check_tools(tools, None, info)
    thinking, budget = _thinking(body.thinking, info)
    sampling = SamplingParams(
        temperature=config.temperature if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        max_tokens=convert.limit(body.max_tokens, info),
        stop=convert.stops(body.stop_sequences, "stop_sequences", 16),
        grammar=tools.grammar,
    )
    messages = conversation(body.system, body.messages, config.max_messages)
    # Words put into the assistant's mouth are the beginning of its answer.
    begun = bool(messages) and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    request = GenerationRequest(
        messages=fit_tools(messages, tools, info),
        continue_final_message=convert.continues(begun, tools, "messages"),
        sampling=sampling,
        tools=template_tools(tools, info),
        thinking=thinking,
        thinking_budget=budget,
    )
    request.check()
    return convert.Plan(request, tools)


def _thinking(value: dict[str, Any] | None, info: EngineInfo) -> tuple[bool | None, int | None]:
    """Whether to think, and for how many tokens at most."""
    if value is None:
        return None, None
    kind = value.get("type")
    if kind == "disabled":
        return False, None
    if kind == "adaptive":
        # Left to the model, which may be one that never thinks.
        return (True if info.thinking else None), None
    budget = value.get("budget_tokens")
    if kind != "enabled" or type(budget) is not int or budget < 1:
        raise RequestError("thinking should be disabled, adaptive, or enabled with budget_tokens.", param="thinking")
    return convert.check_thinking(True, "thinking", info), budget


def _tools(values: Sequence[Any] | None, choice: dict[str, Any] | None, config: ServerConfig) -> ToolPlan:
    """Anthropic's tools in OpenAI's form. Those that run on Anthropic's machines are left out."""
    functions = []
    for index, value in enumerate(values or ()):
        if not isinstance(value, dict):
            raise RequestError(f"tools[{index}] should be an object.", param=f"tools[{index}]")
        if value.get("type", "custom") == "custom":
            where = f"tools[{index}]"
            made = make_tool(
                value.get("name"),
                value.get("description") or "",
                value.get("input_schema"),
                where,
                f"{where}.input_schema",
            )
            functions.append({"type": "function", "function": made})
    choice = choice or {"type": "auto"}
    kind = choice.get("type")
    wanted = {"auto": "auto", "any": "required", "none": "none"}.get(str(kind))
    if kind == "tool":
        parallel, target = False, {"type": "function", "function": {"name": choice.get("name")}}
        return plan_tools(functions, target, parallel, config.max_tools)
    if wanted is None:
        raise RequestError("tool_choice.type should be auto, any, tool or none.", param="tool_choice.type")
    parallel = choice.get("disable_parallel_tool_use") is not True
    return plan_tools(functions, wanted, parallel, config.max_tools)


def conversation(system: str | list[Any] | None, values: Sequence[Any], limit: int) -> tuple[dict[str, Any], ...]:
    """Messages in the form chat templates take."""
    if not values:
        raise RequestError("messages is empty; send at least one message.", param="messages")
    if len(values) > limit:
        raise RequestError(f"messages has {len(values)} entries; the limit is {limit}.", param="messages")
    out: list[dict[str, Any]] = []
    if system:
        out.append({"role": "system", "content": convert.text_content(system, "system")})
    for index, value in enumerate(values):
        where = f"messages[{index}]"
        if not isinstance(value, dict):
            raise RequestError(f"{where} should be an object.", param=where)
        role, content = value.get("role"), value.get("content")
        if role not in ("user", "assistant", "system"):
            raise RequestError(f"{where}.role should be user or assistant.", param=f"{where}.role")
        if isinstance(content, str):
            out.append({"role": role, "content": content})
        elif isinstance(content, list):
            _add_blocks(out, role, content, f"{where}.content")
        else:
            raise RequestError(f"{where}.content should be a text or a list of blocks.", param=f"{where}.content")
    return tuple(out)


def _add_blocks(out: list[dict[str, Any]], role: str, blocks: list[Any], where: str) -> None:
    texts: list[str] = []
    message: dict[str, Any] = {"role": role}
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if not isinstance(block, dict):
            raise RequestError(f"{place} should be an object.", param=place)
        kind = block.get("type")
        if kind == "text":
            texts.append(as_text(block.get("text"), f"{place}.text"))
        elif kind == "tool_use" and role == "assistant":
            _add_use(message, block, place)
        elif kind == "tool_result" and role == "user":
            content = block.get("content")
            text = convert.text_content("" if content is None else content, f"{place}.content")
            out.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": text})
        elif kind == "thinking" and role == "assistant":
            message["reasoning_content"] = str(block.get("thinking", ""))
        elif kind != "redacted_thinking":
            raise RequestError(f"{place}.type is {kind!r}; this model reads only text.", param=f"{place}.type")
    if texts or role == "assistant":
        out.append({**message, "content": "".join(texts)})


def _add_use(message: dict[str, Any], block: dict[str, Any], where: str) -> None:
    name, arguments = block.get("name"), block.get("input")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise RequestError(f"{where} should have a name and an input object.", param=where)
    call = {"id": str(block.get("id", "")), "type": "function", "function": {"name": name, "arguments": arguments}}
    message.setdefault("tool_calls", []).append(call)


def _usage(outcome: Outcome) -> dict[str, Any]:
    return {
        "input_tokens": outcome.prompt_tokens - outcome.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": outcome.cached_tokens,
        "output_tokens": outcome.total("generation_tokens"),
    }


def _stop(choice: Choice, stops: Sequence[str]) -> tuple[str, str | None]:
    """Anthropic's stop reason and, if one matched, the stop sequence."""
    if choice.reason == "length":
        return "max_tokens", None
    if choice.calls:
        return "tool_use", None
    if choice.matched_stop is not None and choice.matched_stop in stops:
        return "stop_sequence", choice.matched_stop
    return "end_turn", None


def _input(call: ToolCall) -> dict[str, Any]:
    value = json.loads(call.arguments or "{}")
    return value if isinstance(value, dict) else {}


async def complete(service: Service, body: MessagesBody, who: str) -> dict[str, Any]:
    """The whole message."""
    info = await service.check_model(body.model)
    planned = plan(body, service, info)
    outcome = Outcome()
    async with aclosing(cast(Any, service.events([planned], who, PARAM_NAMES))) as events:
        async for event in events:
            outcome.add(event)
    choice = outcome.choices.get(0, Choice())
    content: list[dict[str, Any]] = []
    if choice.thinking:
        content.append({"type": "thinking", "thinking": choice.thinking, "signature": ""})
    if choice.text or not choice.calls:
        content.append({"type": "text", "text": choice.text})
    for call in choice.calls:
        content.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": _input(call)})
    reason, sequence = _stop(choice, planned.request.sampling.stop)
    message = _message(new_id("msg_"), body.model or info.model, content, _usage(outcome))
    return {**message, "stop_reason": reason, "stop_sequence": sequence, "timings": outcome.timings()}


def _message(message_id: str, model: str, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


async def stream(service: Service, body: MessagesBody, who: str) -> AsyncGenerator[bytes, None]:
    """The message as server-sent events."""
    info = await service.check_model(body.model)
    planned = plan(body, service, info)
    blocks = _Blocks()
    outcome = Outcome()
    greeted = False
    async with aclosing(cast(Any, service.events([planned], who, PARAM_NAMES))) as events:
        async for event in events:
            outcome.add(event)
            if isinstance(event, Started) and not greeted:
                greeted = True
                message = _message(new_id("msg_"), body.model or info.model, [], _usage(outcome))
                yield frame({"type": "message_start", "message": message}, "message_start")
            elif isinstance(event, PrefillProgress):
                yield comment(f"prefill {event.done}/{event.total}")
            for value in blocks.of(event):
                yield frame(value, value["type"])
    reason, sequence = _stop(outcome.choices.get(0, Choice()), planned.request.sampling.stop)
    end = {"stop_reason": reason, "stop_sequence": sequence}
    tail = {"type": "message_delta", "delta": end, "usage": _usage(outcome), "timings": outcome.timings()}
    yield frame(tail, "message_delta")
    yield frame({"type": "message_stop"}, "message_stop")


class _Blocks:
    """Turns events into content block events."""

    def __init__(self) -> None:
        self._count = 0
        self._open: str | None = None

    def of(self, event: Event) -> list[dict[str, Any]]:
        """The stream events for one engine event."""
        if isinstance(event, Text) and event.text:
            kind = "thinking" if event.section == "thinking" else "text"
            out = [] if self._open == kind else [*self._close(), self._begin(kind, {"type": kind, kind: ""})]
            return [*out, self._delta({"type": f"{kind}_delta", kind: event.text})]
        if isinstance(event, ToolCall):
            block = {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}
            begin = [*self._close(), self._begin("tool_use", block)]
            return [*begin, self._delta({"type": "input_json_delta", "partial_json": event.arguments}), *self._close()]
        if isinstance(event, Finished):
            empty = self._count == 0 and self._open is None
            return [*([self._begin("text", {"type": "text", "text": ""})] if empty else []), *self._close()]
        return []

    def _begin(self, kind: str, block: dict[str, Any]) -> dict[str, Any]:
        self._open = kind
        if kind == "thinking":
            block = {**block, "signature": ""}
        return {"type": "content_block_start", "index": self._count, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._count, "delta": delta}

    def _close(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        out = [{"type": "content_block_stop", "index": self._count}]
        self._open = None
        self._count += 1
        return out


async def count_tokens(service: Service, body: CountTokensBody) -> dict[str, Any]:
    """How many tokens the prompt has."""
    info = await service.check_model(body.model)
    tools = _tools(body.tools, body.tool_choice, service.config)
    check_tools(tools, None, info)
    thinking, _ = _thinking(body.thinking, info)
    messages = conversation(body.system, body.messages, service.config.max_messages)
    request = GenerationRequest(
        messages=fit_tools(messages, tools, info),
        tools=template_tools(tools, info),
        thinking=thinking,
    )
    return {"input_tokens": await service.client.count_tokens(request)}
