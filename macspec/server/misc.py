"""The small routes: models, health, metrics, tokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from macspec.errors import MacspecError, ModelNotFoundError, RequestError
from macspec.request import GenerationRequest
from macspec.server import convert
from macspec.server.answers import Service
from macspec.server.schemas import TokenizeBody
from macspec.server.tools import check_tools, fit_tools, plan_tools, template_tools
from macspec.worker.protocol import EngineInfo, EngineStats

#: An engine step longer than this means that the device is stuck, not busy.
STUCK_SECONDS = 60.0


def _model(name: str, info: EngineInfo, loaded_at: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": loaded_at,
        "owned_by": "macspec",
        # Three clients, three names for the same number.
        "max_model_len": info.max_context,
        "context_length": info.max_context,
        "max_context_length": info.max_context,
        "loaded": True,
        "drafter": info.drafter,
        "capabilities": {"tools": info.tools, "thinking": info.thinking, "vision": False},
    }


async def models(service: Service, loaded_at: int) -> dict[str, Any]:
    """``GET /v1/models``."""
    info = await service.info()
    data = [_model(name, info, loaded_at) for name in service.names(info)]
    # first_id, last_id and has_more are what Anthropic's clients read.
    return {"object": "list", "data": data, "first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}


async def model(service: Service, name: str, loaded_at: int) -> dict[str, Any]:
    """``GET /v1/models/{id}``."""
    info = await service.check_model(name)
    return _model(name, info, loaded_at)


def health(service: Service) -> tuple[int, dict[str, Any]]:
    """``GET /health``: 200 while requests can be answered. Needs nothing from the engine, so it cannot hang."""
    client = service.client
    status = {"ready": "ok", "loading": "loading"}.get(client.state, "error")
    if status == "ok" and client.step_seconds > STUCK_SECONDS:
        status = "stuck"
    body: dict[str, Any] = {
        "status": status,
        "running": service.admission.running,
        "waiting": service.admission.waiting,
    }
    return (200 if status == "ok" else 503), body


async def metrics(service: Service) -> str:
    """``GET /metrics``."""
    try:
        async with asyncio.timeout(2.0):
            stats = await service.client.stats()
    except (MacspecError, TimeoutError):
        # While the engine is being replaced there is nothing to report about it.
        stats = EngineStats()
    return service.metrics.text(service.admission.running, service.admission.waiting, stats)


async def tokenize(service: Service, body: TokenizeBody) -> dict[str, Any]:
    """``POST /tokenize``."""
    info = await service.check_model(body.model)
    texts = [text for text in (body.prompt, body.content) if text is not None]
    if len(texts) + (body.messages is not None) != 1:
        raise RequestError("Give exactly one of prompt, content and messages.", param="prompt")
    if body.messages is None:
        if not texts[0]:
            return {"tokens": [], "count": 0, "max_model_len": info.max_context}
        request = GenerationRequest(prompt=texts[0])
    else:
        plan = plan_tools(body.tools, None, None, service.config.max_tools)
        check_tools(plan, None, info)
        messages = convert.chat_messages(body.messages, service.config.max_messages)
        request = GenerationRequest(messages=fit_tools(messages, plan, info), tools=template_tools(plan, info))
    tokens = await service.client.tokenize(request)
    return {"tokens": list(tokens), "count": len(tokens), "max_model_len": info.max_context}


def no_embeddings() -> MacspecError:
    """The answer to ``/v1/embeddings``, which people try."""
    return ModelNotFoundError("This server generates text only; it has no embedding model.", param="model")
