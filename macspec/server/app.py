"""The ASGI application: routes, and what happens around every request."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from macspec.server import chat, completions, messages, misc, openapi, responses
from macspec.server.answers import Service, new_id
from macspec.server.body import ClientGone, check_headers, read_json
from macspec.server.config import ServerConfig
from macspec.server.errors import (
    HeaderTooLargeError,
    anthropic_error,
    as_macspec_error,
    error_response,
    openai_error,
    speaks_anthropic,
)
from macspec.server.schemas import (
    Body,
    ChatBody,
    CompletionBody,
    CountTokensBody,
    MessagesBody,
    ResponsesBody,
    TokenizeBody,
)
from macspec.server.security import Guard
from macspec.server.streams import EventStream, frame, while_connected
from macspec.worker.client import EngineClient

logger = logging.getLogger("macspec.server")

B = TypeVar("B", bound=Body)

Whole = Callable[[Service, B, str], Awaitable[dict[str, Any]]]
Streamed = Callable[[Service, B, str], AsyncGenerator[bytes, None]]


@dataclass(frozen=True)
class Generation:
    """An endpoint that answers with one body or, with ``stream``, in pieces."""

    body: type[Any]
    complete: Whole[Any]
    stream: Streamed[Any]


GENERATIONS = {
    "/chat/completions": Generation(ChatBody, chat.complete, chat.stream),
    "/completions": Generation(CompletionBody, completions.complete, completions.stream),
    "/responses": Generation(ResponsesBody, responses.complete, responses.stream),
    "/messages": Generation(MessagesBody, messages.complete, messages.stream),
}


def create_app(client: EngineClient, config: ServerConfig | None = None) -> Application:
    """The application for a started client."""
    return Application(Service(client, config or ServerConfig()))


class Application:
    """Checks a request, answers it, and turns whatever goes wrong into the client's form of error, in one place."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.guard = Guard(service.config)
        self._loaded_at = int(time.time())
        self._router: ASGIApp = Router(self._routes(), redirect_slashes=False)

    def _routes(self) -> list[Route]:
        routes = []
        for prefix in ("/v1", ""):
            routes += [
                Route(prefix + path, self._generation(kind), methods=["POST"]) for path, kind in GENERATIONS.items()
            ]
            routes += [
                Route(prefix + "/messages/count_tokens", self._count_tokens, methods=["POST"]),
                Route(prefix + "/models", self._models, methods=["GET"]),
                Route(prefix + "/models/{name:path}", self._model, methods=["GET"]),
                Route(prefix + "/embeddings", self._embeddings, methods=["POST"]),
                Route(prefix + "/tokenize", self._tokenize, methods=["POST"]),
                Route(prefix + "/health", self._health, methods=["GET"]),
                Route(prefix + "/metrics", self._metrics, methods=["GET"]),
            ]
        routes.append(Route("/openapi.json", self._openapi, methods=["GET"]))
        return [*routes, Route("/", self._hello, methods=["GET"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"cannot serve {scope['type']}")
        # The router raises its 404 and 405 only when it believes to be inside an application.
        scope["app"] = self
        await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id, path, began = new_id("req_"), scope["path"], time.monotonic()
        headers = _headers(scope)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "headers": headers}
        status: int | None = None
        permitted: str | None = None

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_extra(permitted, request_id)]}
            await send(message)

        try:
            self._check_size(scope)
            self.guard.check_host(headers.get("host"))
            self.guard.check_origin(headers.get("origin"))
            permitted = headers.get("origin")
            if scope["method"] == "OPTIONS" and "origin" in headers:
                await _preflight(headers)(scope, receive, send_marked)
            else:
                self.guard.check_key(path, headers)
                await self._router(scope, receive, send_marked)
        except ClientGone:
            self.service.metrics.disconnects += 1
        except Exception as error:
            if status is not None:
                # Too late for a status: the connection is closed without an end, which clients notice.
                raise
            await error_response(error, path, request_id)(scope, receive, send_marked)
        finally:
            self._note(scope, status, request_id, time.monotonic() - began)

    def _check_size(self, scope: Scope) -> None:
        limit = self.service.config.max_header
        if sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["raw_path"]) > limit:
            raise HeaderTooLargeError(f"The header is longer than {limit >> 10} KiB.")

    def _note(self, scope: Scope, status: int | None, request_id: str, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.service.metrics.responses[route, status or 499] += 1
        # The path comes from outside: whatever a terminal might obey is written as an escape.
        path = scope["path"][:200].encode("unicode_escape").decode()
        logger.info("%s %s %s %s %.3fs", request_id, scope["method"], path, status or "client left", seconds)

    # Routes

    def _generation(self, kind: Generation) -> ASGIApp:
        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            body = kind.body.read(await self._json(scope, receive))
            path, request_id = scope["path"], scope["state"]["request_id"]
            if not body.stream:
                work = kind.complete(self.service, body, _who(scope))
                answer = await while_connected(receive, work)
                return await JSONResponse(answer)(scope, receive, send)

            def tell(error: Exception) -> bytes:
                told = as_macspec_error(error, request_id)
                if speaks_anthropic(path):
                    return frame(anthropic_error(told, request_id), "error")
                return frame(openai_error(told))

            frames = kind.stream(self.service, body, _who(scope))
            await EventStream(frames, tell, self.service.config)(scope, receive, send)

        return _Endpoint(endpoint)

    async def _json(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        check_headers(scope["state"]["headers"], self.service.config)
        return await read_json(scope, receive, self.service.config)

    async def _count_tokens(self, request: Request) -> Response:
        body = CountTokensBody.read(await self._json(request.scope, request.receive))
        return JSONResponse(await messages.count_tokens(self.service, body))

    async def _tokenize(self, request: Request) -> Response:
        body = TokenizeBody.read(await self._json(request.scope, request.receive))
        return JSONResponse(await misc.tokenize(self.service, body))

    async def _models(self, request: Request) -> Response:
        return JSONResponse(await misc.models(self.service, self._loaded_at))

    async def _model(self, request: Request) -> Response:
        return JSONResponse(await misc.model(self.service, request.path_params["name"], self._loaded_at))

    async def _embeddings(self, request: Request) -> Response:
        raise misc.no_embeddings()

    async def _health(self, request: Request) -> Response:
        status, body = misc.health(self.service)
        return JSONResponse(body, status)

    async def _metrics(self, request: Request) -> Response:
        text = await misc.metrics(self.service)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        info = self.service.client.info
        return JSONResponse(openapi.document(() if info is None else self.service.names(info)))

    async def _hello(self, request: Request) -> Response:
        return PlainTextResponse("macspec is running. The API is under /v1.\n")


class _Endpoint:
    """Lets `Route` take a plain ASGI function: it wraps functions but not objects."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _headers(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name. A repeated one counts once, the first: nobody can add a second Host."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return headers


def _extra(origin: str | None, request_id: str) -> list[tuple[bytes, bytes]]:
    """Headers of every answer; ``origin`` is the web page that may read it, if one asked."""
    extra = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
    if origin is not None:
        extra += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
    return extra


def _who(scope: Scope) -> str:
    """What tells clients apart for fairness; on one machine the address is the same for all."""
    address = scope.get("client") or ("", 0)
    return f"{address[0]} {scope['state']['headers'].get('user-agent', '')[:200]}"


def _preflight(headers: dict[str, str]) -> Response:
    """What a permitted web page may do."""
    allowed = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, "
        + ", ".join(name for name in _asked(headers) if name.startswith("x-stainless-")),
        "access-control-max-age": "600",
    }
    allowed["access-control-allow-headers"] = allowed["access-control-allow-headers"].rstrip(", ")
    return Response(status_code=204, headers=allowed)


def _asked(headers: dict[str, str]) -> list[str]:
    names = headers.get("access-control-request-headers", "").lower().split(",")
    return [name.strip() for name in names if name.strip().replace("-", "").isalnum()]


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
