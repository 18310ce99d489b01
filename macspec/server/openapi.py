"""Our own API description, made from the models that check the bodies: ``GET /openapi.json``."""

from __future__ import annotations

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
_REFUSALS = ("400", "401", "403", "404", "405", "408", "413", "415", "429", "431", "503")
_EXAMPLE_MESSAGE = {"role": "user", "content": "Hello"}


def document() -> dict[str, Any]:
    """The description as OpenAPI 3.1."""
    schemas: dict[str, Any] = {"Error": {"type": "object"}}
    paths: dict[str, Any] = {}
    for path, (body, summary) in _POSTS.items():
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        if "messages" in schema["properties"]:
            schema["properties"]["messages"]["examples"] = [[_EXAMPLE_MESSAGE]]
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
            operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
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
