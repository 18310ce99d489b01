"""Our own API description, made from the models that check the bodies: ``GET /openapi.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from macspec import __version__
from macspec.server.schemas import (
    Body,
    ChatBody,
    CompletionBody,
    CountTokensBody,
    MessagesBody,
    ResponsesBody,
    TokenizeBody,
)

_POSTS: dict[str, tuple[type[Body], str]] = {
    "/v1/chat/completions": (ChatBody, "Answer a conversation."),
    "/v1/completions": (CompletionBody, "Continue a text."),
    "/v1/responses": (ResponsesBody, "Answer in the form of the Responses API; nothing is stored."),
    "/v1/messages": (MessagesBody, "Answer in Anthropic's form."),
    "/v1/messages/count_tokens": (CountTokensBody, "Count the tokens of a prompt in Anthropic's form."),
    "/tokenize": (TokenizeBody, "Token ids of a text or of messages."),
}
_GETS = {
    "/v1/models": "What is served.",
    "/v1/models/{id}": "One served model.",
    "/health": "Whether requests can be answered now.",
    "/metrics": "Counters in Prometheus' text format.",
}
_REFUSALS = ("400", "401", "403", "404", "405", "408", "411", "413", "415", "429", "431", "503")

_TEXT = {"type": "string"}
_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": _TEXT},
        "required": ["type", "text"],
    },
}
_FUNCTION: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 128}, "description": _TEXT},
    "required": ["name"],
}


def _object(required: str, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [required]}


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _messages(*roles: str) -> dict[str, Any]:
    message = {
        "type": "object",
        "properties": {"role": {"enum": list(roles)}, "content": {"anyOf": [_TEXT, _PARTS]}},
        "required": ["role", "content"],
    }
    return {"type": "array", "minItems": 1, "items": message}


_TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_PROMPT = {"type": "string", "minLength": 1}

_CHOICE = {"enum": ["none", "auto"]}
_TYPED = {"type": {"const": "function"}}
_FORMAT = _object("type", type={"enum": ["text", "json_object"]})
_ANTHROPIC = {
    "messages": _messages("user", "assistant"),
    "tools": _list(_FUNCTION),
    "tool_choice": _object("type", type=_CHOICE),
    "thinking": _object("type", type={"enum": ["disabled", "adaptive"]}),
}

#: Fields whose inner form is checked where they are converted, and what that form is.
_FORMS: dict[type[Body], dict[str, dict[str, Any]]] = {
    ChatBody: {
        "messages": _messages("system", "developer", "user", "assistant"),
        "tools": _list({"type": "object", "properties": {**_TYPED, "function": _FUNCTION}, "required": ["function"]}),
        "tool_choice": _CHOICE,
        "response_format": _FORMAT,
    },
    CompletionBody: {
        "prompt": {"anyOf": [_PROMPT, {"type": "array", "minItems": 1, "items": _PROMPT}, _TOKENS]},
        "response_format": _FORMAT,
    },
    ResponsesBody: {
        "input": {"anyOf": [_PROMPT, _messages("user")]},
        "tools": _list({**_FUNCTION, "properties": {**_TYPED, **_FUNCTION["properties"]}}),
        "tool_choice": _CHOICE,
        "text": _object("format", format=_FORMAT),
        "reasoning": _object("effort", effort={"enum": ["none", "minimal", "low", "medium", "high"]}),
    },
    MessagesBody: _ANTHROPIC,
    CountTokensBody: _ANTHROPIC,
    TokenizeBody: {"messages": _messages("system", "user", "assistant")},
}


def document(models: Sequence[str]) -> dict[str, Any]:
    """The description as OpenAPI 3.1, for a server of these models."""
    schemas: dict[str, Any] = {"Error": {"type": "object"}}
    paths: dict[str, Any] = {}
    name = {"type": "string", "enum": list(models)} if models else _TEXT
    for path, (body, summary) in _POSTS.items():
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schema["properties"] |= {"model": name, **_FORMS.get(body, {})}
        schemas[body.__name__] = schema
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": content},
                "responses": _responses(),
            }
        }
    for path, summary in _GETS.items():
        operation: dict[str, Any] = {"summary": summary, "responses": _responses()}
        if "{id}" in path:
            operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": name}]
        paths[path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "macspec", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _responses() -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refused = {status: {"description": "Refused, with the reason.", "content": error} for status in _REFUSALS}
    return {"200": {"description": "The answer."}, **refused}
