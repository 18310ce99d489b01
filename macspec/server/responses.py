"""``POST /v1/responses``: OpenAI's newer API, without its memory. Nothing is stored; each request is complete."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from macspec.errors import MacspecError, RequestError, UnsupportedError
from macspec.request import Event, Finished, GenerationRequest, PrefillProgress, Text, TokenInfo, ToolCall
from macspec.server import convert
from macspec.server.answers import Outcome, Service, logprob_value, new_id
from macspec.server.chat import reasoning_effort
from macspec.server.errors import openai_error
from macspec.server.schemas import ResponsesBody
from macspec.server.streams import comment, frame
from macspec.server.tools import check_tools, fit_tools, plan_tools, template_tools
from macspec.worker.protocol import EngineInfo

PARAM_NAMES = {
    "messages": "input",
    "grammar": "text.format",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "thinking": "reasoning.effort",
}


def plan(body: ResponsesBody, service: Service, info: EngineInfo) -> convert.Plan:
    """What the engine is asked for."""
    config = service.config
    tools = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, config.max_tools)
    text = body.text or {}
    if text.get("verbosity") not in (None, "medium"):
        raise UnsupportedError("text.verbosity is not supported here; leave it out.", param="text.verbosity")
    grammar = convert.response_grammar(text.get("format"), "text.format")
    check_tools(tools, grammar, info)
    effort = reasoning_effort(body.reasoning or {})
    sampling = replace(
        convert.sampling(body, config),
        max_tokens=convert.limit(body.max_output_tokens, info),
        logprobs=_logprobs_wanted(body),
        grammar=tools.grammar or grammar,
    )
    request = GenerationRequest(
        messages=fit_tools(messages(body, config.max_messages), tools, info),
        sampling=sampling,
        tools=template_tools(tools, info),
        template_options=convert.with_effort({}, effort, info),
        thinking=convert.thinks(effort, "reasoning.effort", None, info),
        depth=convert.depth(body.depth),
        use_cache=body.cache_prompt is not False,
    )
    request.check()
    return convert.Plan(request, tools)


def _logprobs_wanted(body: ResponsesBody) -> int | None:
    if body.include is not None and "message.output_text.logprobs" in body.include:
        return body.top_logprobs or 0
    return body.top_logprobs or None


def messages(body: ResponsesBody, limit: int) -> tuple[dict[str, Any], ...]:
    """The conversation as chat messages."""
    items: list[Any] = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if not items or body.input == "":
        raise RequestError("input is empty; send at least one message.", param="input")
    if len(items) > limit:
        raise RequestError(f"input has {len(items)} items; the limit is {limit}.", param="input")
    out: list[dict[str, Any]] = []
    if body.instructions:
        out.append({"role": "system", "content": body.instructions})
    for index, item in enumerate(items):
        _add_item(out, item, f"input[{index}]")
    if all(message["role"] == "system" for message in out):
        # Only reasoning or unknown items: nothing a template could answer.
        raise RequestError("input has no message to answer.", param="input")
    return tuple(out)


def _add_item(out: list[dict[str, Any]], item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise RequestError(f"{where} should be an object.", param=where)
    kind = item.get("type", "message")
    if kind == "message":
        role = "system" if item.get("role") == "developer" else item.get("role")
        if role not in ("system", "user", "assistant"):
            raise RequestError(f"{where}.role should be user, assistant, system or developer.", param=f"{where}.role")
        out.append({"role": role, "content": convert.text_content(item.get("content"), f"{where}.content")})
    elif kind == "function_call":
        name, arguments = item.get("name"), item.get("arguments", "")
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise RequestError(f"{where} should have a name and arguments as texts.", param=where)
        call = convert.past_call(arguments, name, f"{where}.arguments")
        call["id"] = str(item.get("call_id", ""))
        # Calls made in one turn are separate items here and one message in a template.
        if not out or out[-1]["role"] != "assistant":
            out.append({"role": "assistant", "content": ""})
        out[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = convert.text_content(item.get("output"), f"{where}.output")
        out.append({"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": output})
    elif kind == "item_reference":
        raise UnsupportedError(f"{where} refers to a stored item, and nothing is stored here.", param=where)
    # Reasoning, web searches and the like tell of turns elsewhere; a template has no place for them.


class _Response:
    """The response object, growing while the answer comes."""

    def __init__(self, body: ResponsesBody, planned: convert.Plan, model: str) -> None:
        self.outcome = Outcome()
        self.output: list[dict[str, Any]] = []
        self.status = "in_progress"
        self.error: dict[str, Any] | None = None
        sampling = planned.request.sampling
        self._fixed: dict[str, Any] = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "background": False,
            "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": (body.text or {}).get("format") or {"type": "text"}, "verbosity": "medium"},
            "tool_choice": body.tool_choice or "auto",
            "tools": [{"type": "function", "strict": False, **item["function"]} for item in planned.tools.tools],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
        }

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self._fixed["id"])

    def finish(self, reason: str) -> None:
        """Set the final status."""
        self.status = "incomplete" if reason in ("length", "cancelled") else "completed"

    def fail(self, message: str) -> None:
        """Set the final status of an answer that broke off."""
        self.status, self.error = "failed", {"code": "server_error", "message": message}

    def value(self) -> dict[str, Any]:
        """JSON values now."""
        done = self.status in ("completed", "incomplete")
        limited = {"reason": "max_output_tokens"} if self.status == "incomplete" else None
        return {
            **self._fixed,
            "status": self.status,
            "completed_at": int(time.time()) if self.status == "completed" else None,
            "error": self.error,
            "incomplete_details": limited,
            "output": self.output,
            **({"usage": self._usage(), "timings": self.outcome.timings()} if done else {}),
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.outcome.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": self.outcome.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.outcome.total("thinking_tokens")},
            "total_tokens": usage["total_tokens"],
        }


class _Items:
    """Builds output items from events and says what a stream reports about them."""

    def __init__(self, response: _Response, logprobs: bool) -> None:
        self._response, self._logprobs = response, logprobs
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._tokens: list[dict[str, Any]] = []

    def of(self, event: Event) -> list[dict[str, Any]]:
        """Stream events for one engine event."""
        if isinstance(event, Text) and event.text:
            return self._add_text(event)
        if isinstance(event, ToolCall):
            return [*self.close(), *self._call(event)]
        if isinstance(event, Finished):
            return self.close("incomplete" if event.reason == "length" else "completed")
        return []

    def _position(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._response.output) - 1}

    def _begin(self, item: dict[str, Any]) -> dict[str, Any]:
        self._response.output.append(item)
        self._open, self._text, self._tokens = item, "", []
        return {
            "type": "response.output_item.added",
            "output_index": len(self._response.output) - 1,
            "item": dict(item),
        }

    def _add_text(self, event: Text) -> list[dict[str, Any]]:
        kind = "reasoning" if event.section == "thinking" else "message"
        out: list[dict[str, Any]] = []
        if self._open is None or self._open["type"] != kind:
            out += self.close()
            out += self._begin_text(kind)
        self._text += event.text
        tokens = [_logprob(token) for token in event.tokens] if self._logprobs and kind == "message" else []
        self._tokens += tokens
        delta = {**self._position(), "content_index": 0, "delta": event.text}
        if kind == "message":
            out.append({"type": "response.output_text.delta", **delta, "logprobs": tokens})
        else:
            out.append({"type": "response.reasoning_text.delta", **delta})
        return out

    def _begin_text(self, kind: str) -> list[dict[str, Any]]:
        if kind == "message":
            item: dict[str, Any] = {
                "id": new_id("msg_"),
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
            }
        else:
            item = {"id": new_id("rs_"), "type": kind, "summary": [], "status": "in_progress"}
        added = self._begin({**item, "content": []})
        part = self._part(kind, "", [])
        return [added, {"type": "response.content_part.added", **self._position(), "content_index": 0, "part": part}]

    def _part(self, kind: str, text: str, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        if kind == "message":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}
        return {"type": "reasoning_text", "text": text}

    def close(self, status: str = "completed") -> list[dict[str, Any]]:
        """End the open item, if there is one."""
        if self._open is None:
            return []
        item, kind, at = self._open, self._open["type"], self._position()
        part = self._part(kind, self._text, self._tokens)
        item["content"], item["status"] = [part], status
        self._open = None
        name = "output_text" if kind == "message" else "reasoning_text"
        text_done = {"type": f"response.{name}.done", **at, "content_index": 0, "text": self._text}
        if kind == "message":
            text_done["logprobs"] = self._tokens
        return [
            text_done,
            {"type": "response.content_part.done", **at, "content_index": 0, "part": part},
            {"type": "response.output_item.done", "output_index": at["output_index"], "item": dict(item)},
        ]

    def _call(self, event: ToolCall) -> list[dict[str, Any]]:
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "call_id": event.call_id,
            "name": event.name,
            "arguments": "",
            "status": "in_progress",
        }
        added = self._begin(item)
        at = self._position()
        item["arguments"], item["status"] = event.arguments, "completed"
        self._open = None
        return [
            added,
            {"type": "response.function_call_arguments.delta", **at, "delta": event.arguments},
            {
                "type": "response.function_call_arguments.done",
                **at,
                "name": event.name,
                "arguments": event.arguments,
            },
            {"type": "response.output_item.done", "output_index": at["output_index"], "item": dict(item)},
        ]


def _logprob(token: TokenInfo) -> dict[str, Any]:
    own = {"token": token.text, "logprob": logprob_value(token.logprob), "bytes": list(token.raw)}
    top = [{"token": t.text, "logprob": logprob_value(t.logprob), "bytes": list(t.raw)} for t in token.top]
    return {**own, "top_logprobs": top}


async def complete(service: Service, body: ResponsesBody, who: str) -> dict[str, Any]:
    """The whole response."""
    info = await service.check_model(body.model)
    planned = plan(body, service, info)
    response = _Response(body, planned, body.model or info.model)
    items = _Items(response, planned.request.sampling.logprobs is not None)
    async with aclosing(cast(Any, service.events([planned], who, PARAM_NAMES))) as events:
        async for event in events:
            response.outcome.add(event)
            items.of(event)
            if isinstance(event, Finished):
                response.finish(event.reason)
    return response.value()


async def stream(service: Service, body: ResponsesBody, who: str) -> AsyncGenerator[bytes, None]:
    """The response as server-sent events."""
    info = await service.check_model(body.model)
    planned = plan(body, service, info)
    response = _Response(body, planned, body.model or info.model)
    items = _Items(response, planned.request.sampling.logprobs is not None)
    number = 0

    def send(value: dict[str, Any]) -> bytes:
        nonlocal number
        data = frame({**value, "sequence_number": number}, value["type"])
        number += 1
        return data

    begun = False
    try:
        async with aclosing(cast(Any, service.events([planned], who, PARAM_NAMES))) as events:
            async for event in events:
                if not begun:
                    begun = True
                    yield send({"type": "response.created", "response": response.value()})
                    yield send({"type": "response.in_progress", "response": response.value()})
                response.outcome.add(event)
                if isinstance(event, PrefillProgress):
                    yield comment(f"prefill {event.done}/{event.total}")
                for value in items.of(event):
                    yield send(value)
                if isinstance(event, Finished):
                    response.finish(event.reason)
                    yield send({"type": f"response.{response.status}", "response": response.value()})
    except MacspecError as error:
        if not begun:
            raise
        told = openai_error(error)["error"]
        response.fail(error.message)
        yield send({"type": "response.failed", "response": response.value()})
        # Clients that skip the event above stop at this one.
        yield send({**told, "type": "error", "error": told})
