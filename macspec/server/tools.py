"""Tools: what a request may call, what it must call, and what a model makes of that whose template knows no tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from macspec.errors import RequestError, UnsupportedError
from macspec.request import Grammar
from macspec.server.fields import as_object, as_text
from macspec.worker.protocol import EngineInfo


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """What the tools of a request mean for it."""

    #: For the chat template.
    tools: tuple[dict[str, Any], ...] = ()
    #: Names of which one must be called; empty when the model decides.
    forced: tuple[str, ...] = ()
    #: Constraint on the answer when a call is forced.
    grammar: Grammar | None = None
    #: At most one call.
    single: bool = False


def plan_tools(tools: Sequence[Any] | None, choice: Any, parallel: bool | None, limit: int) -> ToolPlan:
    """OpenAI's ``tools`` and ``tool_choice``. Types other than functions run on OpenAI's machines and are left out."""
    if tools is not None and len(tools) > limit:
        raise RequestError(f"tools has {len(tools)} entries; the limit is {limit}.", param="tools")
    known: dict[str, dict[str, Any]] = {}
    for index, value in enumerate(tools or ()):
        fields = as_object(value, f"tools[{index}]")
        if fields.get("type") == "function":
            function = _function(fields, f"tools[{index}]")
            known[function["name"]] = function
    wanted = _tool_choice(choice)
    if wanted == "none" or (not known and wanted == "auto"):
        return ToolPlan()
    if wanted == "required" and known:
        return force(known, tuple(known), parallel is False)
    if wanted == "auto":
        return ToolPlan(_for_template(known), single=parallel is False)
    name = wanted.removeprefix("=")
    if name not in known:
        reason = "names no tool of this request" if known else "needs tools"
        raise RequestError(f"tool_choice {reason}.", param="tool_choice")
    return force(known, (name,), True)


def _function(fields: dict[str, Any], where: str) -> dict[str, Any]:
    # The Responses API has the function's fields at the top.
    place = f"{where}.function" if "function" in fields else where
    inner = as_object(fields.get("function", fields), place)
    return make_tool(
        inner.get("name"), inner.get("description", ""), inner.get("parameters"), place, f"{place}.parameters"
    )


def make_tool(name: Any, description: Any, parameters: Any, where: str, schema_at: str) -> dict[str, Any]:
    """A function as templates expect it."""
    if not isinstance(name, str) or not name or len(name) > 128:
        raise RequestError(f"{where}.name should be a text of 1 to 128 characters.", param=f"{where}.name")
    schema = {"type": "object", "properties": {}} if parameters is None else as_object(parameters, schema_at)
    return {"name": name, "description": as_text(description, f"{where}.description"), "parameters": schema}


def _tool_choice(choice: Any) -> str:
    if choice is None:
        return "auto"
    if choice in ("none", "auto", "required"):
        return str(choice)
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return f"={function['name']}"
    raise RequestError("tool_choice should be none, auto, required or name a function.", param="tool_choice")


def _for_template(known: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    return tuple({"type": "function", "function": function} for function in known.values())


def force(known: dict[str, dict[str, Any]], names: tuple[str, ...], single: bool) -> ToolPlan:
    """A call of one of ``names``: the answer is constrained to its JSON, and turned into a call afterwards."""
    if len(names) == 1:
        schema = known[names[0]]["parameters"]
    else:
        schema = {"anyOf": [_call_schema(known[name]) for name in names]}
    grammar = Grammar("json_schema", json.dumps(schema))
    return ToolPlan(_for_template(known), names, grammar, single)


def _call_schema(function: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": function["parameters"]},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def check_tools(plan: ToolPlan, grammar: Grammar | None, info: EngineInfo) -> None:
    """Refuse combinations that the answer could not honour.

    A forced call needs no tools in the template: the answer is constrained to it, see `fit_tools`.
    """
    if plan.tools and not info.tools and not plan.forced:
        raise UnsupportedError(
            "The loaded model cannot decide to call tools; leave tools out or force a call with tool_choice.",
            param="tools",
        )
    if plan.tools and grammar is not None:
        raise UnsupportedError(
            "response_format and tools exclude each other: a constrained answer cannot be a call.",
            param="response_format",
        )


def template_tools(plan: ToolPlan, info: EngineInfo) -> tuple[dict[str, Any], ...]:
    """Tools for the chat template; none where it has no place for them."""
    return plan.tools if info.tools else ()


def fit_tools(messages: tuple[dict[str, Any], ...], plan: ToolPlan, info: EngineInfo) -> tuple[dict[str, Any], ...]:
    """The messages as the model's template takes them.

    Where it has no place for tools, those of a forced call are told in the system message, earlier calls are the JSON
    they were made of, and their results come from the user.
    """
    if info.tools:
        return messages
    told = tuple(_without_tools(message) for message in messages)
    if not plan.forced:
        return told
    functions = [tool["function"] for tool in plan.tools if tool["function"]["name"] in plan.forced]
    if len(functions) == 1:
        form = "Answer only with JSON, the arguments of this function:"
    else:
        form = 'Answer only with JSON of the form {"name": ..., "arguments": ...} that calls one of these functions:'
    text = "\n".join([form, *(json.dumps(function, ensure_ascii=False) for function in functions)])
    if told and told[0]["role"] == "system":
        return ({**told[0], "content": f"{told[0]['content']}\n\n{text}"}, *told[1:])
    return ({"role": "system", "content": text}, *told)


def _without_tools(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": message["content"]}
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    if not calls:
        return message
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join([text for text in (message["content"], *calls) if text])}
