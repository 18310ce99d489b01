"""Read a request's JSON body within limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.types import Receive, Scope

from macspec.server.config import ServerConfig
from macspec.server.errors import BadRequestError, LengthError, MediaTypeError, SlowRequestError, TooLargeError


class ClientGone(Exception):
    """The client closed its connection; nobody is left to answer."""


def check_headers(headers: dict[str, str], config: ServerConfig) -> None:
    """Refuse a body that is not JSON or too long, before reading it."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A web page may send text/plain anywhere without asking; JSON it may not.
        raise MediaTypeError("Send the body as JSON with the header 'content-type: application/json'.")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise MediaTypeError("Send the body without compression.")
    length = headers.get("content-length", "")
    if not length and "transfer-encoding" not in headers:
        raise LengthError("Send the body with its length in the header 'content-length'.")
    if length.isascii() and length.isdigit() and int(length) > config.max_body:
        raise _too_large(config)


def _too_large(config: ServerConfig) -> TooLargeError:
    return TooLargeError(f"The body is longer than {config.max_body / (1 << 20):.0f} MiB; send less.")


async def read_json(scope: Scope, receive: Receive, config: ServerConfig) -> dict[str, Any]:
    """The JSON object in the body.

    Raises:
        ClientGone: the connection was closed in between.
        HttpError: too long, too slow, not JSON, too deep.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(config.read_timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body += message.get("body", b"")
                if len(body) > config.max_body:
                    raise _too_large(config)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise SlowRequestError(f"The body did not come within {config.read_timeout:.0f} seconds.") from None
    return parse(bytes(body), config.max_depth)


def parse(body: bytes, max_depth: int) -> dict[str, Any]:
    """A JSON object, with lone surrogates replaced so that it can be encoded again."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError as error:
        raise BadRequestError(f"The body is not valid JSON: {_plain(error)}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequestError("The body must be a JSON object.", code="invalid_json")
    cleaned = _clean(value, max_depth, max_depth)
    assert isinstance(cleaned, dict)
    return cleaned


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _plain(error: ValueError) -> str:
    """The reason without quoting the body."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return str(error)[:200]


def _too_deep(limit: int) -> BadRequestError:
    return BadRequestError(f"The body is nested more than {limit} levels deep.", code="invalid_json")


def _clean(value: Any, depth: int, limit: int) -> Any:
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, (dict, list)):
        if depth == 0:
            raise _too_deep(limit)
        if isinstance(value, list):
            return [_clean(item, depth - 1, limit) for item in value]
        return {_clean(key, 0, limit): _clean(item, depth - 1, limit) for key, item in value.items()}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise BadRequestError("A number in the body is too large.", code="invalid_json")
    return value
