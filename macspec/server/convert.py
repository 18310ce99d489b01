"""From a chat client's structures to the engine's: messages, formats, sampling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from macspec.errors import RequestError, UnsupportedError
from macspec.request import GenerationRequest, Grammar, GrammarKind, SamplingParams
from macspec.server.config import ServerConfig
from macspec.server.fields import as_object, as_text
from macspec.server.schemas import ChatBody, CompletionBody, SamplingBody
from macspec.server.tools import ToolPlan
from macspec.worker.protocol import EngineInfo

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

#: Template variables a request may set. Everything else, above all a template of its own, is refused.
_TEMPLATE_OPTIONS = frozenset(
    {"enable_thinking", "thinking", "preserve_thinking", "clear_thinking", "reasoning_effort", "date_string"}
)

#: The engine's field names under the ones of chat clients.
PARAM_NAMES = {"grammar": "response_format", "thinking": "reasoning_effort", "tokens": "prompt"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A request for the engine and how its answer is to be read."""

    request: GenerationRequest
    tools: ToolPlan = ToolPlan()


# Messages


def chat_messages(values: Sequence[Any], limit: int) -> tuple[dict[str, Any], ...]:
    """Messages in the form chat templates take: text content, tool calls with parsed arguments."""
    if not values:
        raise RequestError("messages is empty; send at least one message.", param="messages")
    if len(values) > limit:
        raise RequestError(f"messages has {len(values)} entries; the limit is {limit}.", param="messages")
    return tuple(_message(value, f"messages[{index}]") for index, value in enumerate(values))


def _message(value: Any, where: str) -> dict[str, Any]:
    fields = as_object(value, where)
    role = fields.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{where}.role should be one of {', '.join(_ROLES)}.", param=f"{where}.role")
    message: dict[str, Any] = {"role": _ROLES[role]}
    calls = fields.get("tool_calls") if role == "assistant" else None
    if "content" in fields:
        message["content"] = text_content(fields["content"], f"{where}.content")
    elif role == "assistant":
        message["content"] = ""
    else:
        raise RequestError(f"{where}.content is missing.", param=f"{where}.content")
    if calls is not None:
        if not isinstance(calls, list):
            raise RequestError(f"{where}.tool_calls should be a list.", param=f"{where}.tool_calls")
        message["tool_calls"] = [_past_call(call, f"{where}.tool_calls[{k}]") for k, call in enumerate(calls)]
    for name in ("reasoning_content", "reasoning"):
        if role == "assistant" and isinstance(fields.get(name), str):
            message["reasoning_content"] = fields[name]
            break
    if role == "tool":
        if "tool_call_id" not in fields:
            raise RequestError(f"{where}.tool_call_id is missing.", param=f"{where}.tool_call_id")
        message["tool_call_id"] = as_text(fields["tool_call_id"], f"{where}.tool_call_id")
    if "name" in fields:
        message["name"] = as_text(fields["name"], f"{where}.name")
    return message


def text_content(value: Any, where: str) -> str:
    """The text of a message: a string, or parts that are all text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError(f"{where} should be a text or a list of parts.", param=where)
    texts = []
    for index, part in enumerate(value):
        place = f"{where}[{index}]"
        fields = as_object(part, place)
        kind = fields.get("type")
        if kind in ("text", "input_text", "output_text"):
            texts.append(as_text(fields.get("text"), f"{place}.text"))
        elif kind == "refusal":
            texts.append(as_text(fields.get("refusal"), f"{place}.refusal"))
        else:
            raise RequestError(f"{place}.type is {kind!r}; this model reads only text.", param=f"{place}.type")
    return "".join(texts)


def _past_call(value: Any, where: str) -> dict[str, Any]:
    fields = as_object(value, where)
    function = as_object(fields.get("function"), f"{where}.function")
    name = as_text(function.get("name"), f"{where}.function.name")
    arguments = function.get("arguments", "")
    call = past_call(as_text(arguments, f"{where}.function.arguments"), name, f"{where}.function.arguments")
    if "id" in fields:
        call["id"] = as_text(fields["id"], f"{where}.id")
    return call


def past_call(arguments: str, name: str, where: str) -> dict[str, Any]:
    """A tool call of an earlier turn. Templates print the arguments as JSON, so they get the parsed value."""
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        raise RequestError(f"{where} should be JSON text.", param=where) from None
    return {"type": "function", "function": {"name": name, "arguments": parsed}}


# Format and sampling


def response_grammar(value: Any, where: str = "response_format") -> Grammar | None:
    """OpenAI's ``response_format``, or ``text.format`` of the Responses API."""
    if value is None:
        return None
    fields = as_object(value, where)
    kind = fields.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json_object")
    if kind == "json_schema":
        # The Responses API has the schema's fields at the top.
        inner = as_object(fields["json_schema"], f"{where}.json_schema") if "json_schema" in fields else fields
        place = f"{where}.json_schema.schema" if "json_schema" in fields else f"{where}.schema"
        if "schema" not in inner:
            raise RequestError(f"{place} is missing.", param=place)
        return Grammar("json_schema", json.dumps(as_object(inner["schema"], place)))
    raise RequestError(f"{where}.type should be text, json_object or json_schema.", param=f"{where}.type")


#: Constraints by the fields of other local servers.
_GUIDED: dict[str, GrammarKind] = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "lark",
}


def guided_grammar(body: ChatBody | CompletionBody) -> Grammar | None:
    """``response_format`` or one of the ``guided_*`` fields of other local servers; at most one."""
    found: list[tuple[str, Grammar]] = []
    grammar = response_grammar(body.response_format)
    if grammar is not None:
        found.append(("response_format", grammar))
    for name, kind in _GUIDED.items():
        value = getattr(body, name)
        if value is not None:
            found.append((name, Grammar(kind, value if isinstance(value, str) else json.dumps(value))))
    if len(found) > 1:
        raise RequestError(f"{found[0][0]} and {found[1][0]} exclude each other.", param=found[1][0])
    return found[0][1] if found else None


def continues(wanted: bool, tools: ToolPlan, field: str) -> bool:
    """Whether the answer goes on with the assistant's last message; a call that is forced has to begin anew."""
    if wanted and tools.forced:
        raise RequestError("A forced tool call cannot go on with a message; end with the user's.", param=field)
    return wanted


def param_names(body: ChatBody | CompletionBody) -> dict[str, str]:
    """The engine's field names under the ones of this request."""
    given = (name for name in _GUIDED if getattr(body, name) is not None)
    return {**PARAM_NAMES, "grammar": next(given, "response_format")}


def sampling(body: SamplingBody, config: ServerConfig) -> SamplingParams:
    """The sampling parameters all OpenAI endpoints share."""
    base = SamplingParams(temperature=config.temperature)
    given = {
        name: value
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "penalty_window",
            "min_tokens",
            "ignore_eos",
        )
        if (value := getattr(body, name)) is not None
    }
    if body.logit_bias is not None:
        given["logit_bias"] = _bias(body.logit_bias)
    if body.stop_token_ids is not None:
        given["stop_token_ids"] = tuple(body.stop_token_ids)
    return replace(base, **given)


def _bias(values: dict[str, float]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in values.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise RequestError(f"logit_bias names {key[:20]!r}; its keys are token ids.", param="logit_bias")
        if not -100 <= value <= 100:
            raise RequestError("logit_bias should be from -100 to 100.", param="logit_bias")
        bias[int(key)] = value
    return bias


def stops(value: str | list[str] | None, where: str = "stop", most: int = 4) -> tuple[str, ...]:
    """Stop strings."""
    found = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if len(found) > most:
        raise RequestError(f"{where} has {len(found)} texts; at most {most} are possible.", param=where)
    if "" in found:
        raise RequestError(f"{where} has an empty text, which would end every answer at once.", param=where)
    return found


def limit(wanted: int | None, info: EngineInfo) -> int | None:
    """A token limit; one beyond the context means the context, as clients ask for the largest they know."""
    return wanted if wanted is None or not info.max_context else min(wanted, info.max_context)


def depth(value: str | int | None) -> str:
    """The depth in the request type's form."""
    return "auto" if value is None else str(value)


def choices(wanted: int | None, config: ServerConfig) -> int:
    """``n`` within the server's limit."""
    if wanted is not None and wanted > config.max_choices:
        raise RequestError(f"n is {wanted}; at most {config.max_choices} answers at once are possible.", param="n")
    return wanted or 1


def template_options(values: dict[str, Any] | None) -> tuple[dict[str, Any], bool | None]:
    """``chat_template_kwargs`` without, and the value of, the thinking switch."""
    options: dict[str, Any] = {}
    thinking: bool | None = None
    for name, value in (values or {}).items():
        where = f"chat_template_kwargs.{name[:40]}"
        if name not in _TEMPLATE_OPTIONS:
            raise UnsupportedError(f"{where} is not an option a request may set.", param=where)
        if value is None:
            continue
        if not isinstance(value, (bool, int, str)):
            raise RequestError(f"{where} should be true, false, a number or a text.", param=where)
        if name == "enable_thinking" and isinstance(value, bool):
            thinking = value
        else:
            options[name] = value
    return options, thinking


def with_effort(options: dict[str, Any], effort: str | None, info: EngineInfo) -> dict[str, Any]:
    """Template options with the level of thinking, for templates that have levels; one among the options goes first."""
    return options if effort is None or not info.efforts else {"reasoning_effort": effort, **options}


def thinks(effort: str | None, effort_at: str, switch: bool | None, info: EngineInfo) -> bool | None:
    """Whether to think: an explicit switch wins over an effort, and neither leaves it to the model.

    ``effort_at`` is the effort's name, for the refusal when the model has no such thing. Not to think it can always do.
    """
    where = "chat_template_kwargs.enable_thinking" if switch is not None else effort_at
    if switch is None and info.efforts and not info.thinking:
        # The template takes the level, and how the model marks its thoughts nobody here knows.
        return None
    wanted = switch if switch is not None or effort is None else effort not in ("none", "minimal")
    return check_thinking(wanted, where, info)


def check_thinking(wanted: bool | None, where: str, info: EngineInfo) -> bool | None:
    """``wanted``; refused where it is true and the model cannot think."""
    if wanted and not info.thinking:
        raise UnsupportedError(f"The loaded model has no thinking to switch on; leave {where} out.", param=where)
    return wanted
