"""What can go wrong in a request before the engine sees it, and the one place where exceptions become JSON."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from macspec.errors import MacspecError, RequestError

logger = logging.getLogger("macspec.server")


class HttpError(MacspecError):
    """An answer other than 200 that is decided by the server."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message, param=param)
        if code is not None:
            self.code = code
        #: Seconds after which trying again makes sense.
        self.retry_after = retry_after


class BadRequestError(HttpError):
    """Not a request at all, or a wrong value that needs another code than `RequestError`'s."""

    http_status = 400
    code = "invalid_request"


class AuthenticationError(HttpError):
    """No API key, or a wrong one."""

    http_status = 401
    code = "invalid_api_key"


class ForbiddenError(HttpError):
    """A host or origin that may not use this server."""

    http_status = 403
    code = "forbidden"


class NotFoundError(HttpError):
    """No such route."""

    http_status = 404
    code = "unknown_url"


class MethodError(HttpError):
    """The route exists with another method."""

    http_status = 405
    code = "method_not_allowed"


class SlowRequestError(HttpError):
    """The body did not come in time."""

    http_status = 408
    code = "request_timeout"


class LengthError(HttpError):
    """The request has a method with a body and says nothing about one."""

    http_status = 411
    code = "length_required"


class TooLargeError(HttpError):
    """The body is longer than allowed."""

    http_status = 413
    code = "request_too_large"


class MediaTypeError(HttpError):
    """The body is not JSON, or says it is not."""

    http_status = 415
    code = "unsupported_media_type"


class HeaderTooLargeError(HttpError):
    """The header is longer than allowed."""

    http_status = 431
    code = "header_too_large"


class QueueFullError(HttpError):
    """Too many requests are waiting."""

    http_status = 429
    code = "queue_full"


class LoadingError(HttpError):
    """The model is still being loaded."""

    http_status = 503
    code = "loading"


#: OpenAI's names for the kinds of error; everything else is a ``server_error`` or an ``invalid_request_error``.
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def as_macspec_error(error: BaseException, request_id: str) -> MacspecError:
    """The error to tell: ours as they are, the framework's translated, anything else without its inner details."""
    if isinstance(error, MacspecError):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFoundError("There is no such route here; GET /v1/models and POST /v1/chat/completions are.")
        if error.status_code == 405:
            return MethodError("This route exists, but not with this method.")
        return BadRequestError(str(error.detail))
    logger.error("request %s failed", request_id, exc_info=error)
    return MacspecError(f"The server failed in a way it should not. The log has the details under {request_id}.")


def openai_error(error: MacspecError) -> dict[str, Any]:
    """OpenAI's error object."""
    status = error.http_status
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_error(error: MacspecError, request_id: str) -> dict[str, Any]:
    """Anthropic's error object; it has no field for the parameter, so the sentence names it."""
    status = error.http_status
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = error.message if not error.param or error.param in error.message else f"{error.param}: {error.message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def speaks_anthropic(path: str) -> bool:
    """Whether clients of this path expect Anthropic's shapes."""
    return path.removeprefix("/v1").startswith("/messages")


def error_response(error: BaseException, path: str, request_id: str) -> JSONResponse:
    """The JSON answer for any exception."""
    told = as_macspec_error(error, request_id)
    body = anthropic_error(told, request_id) if speaks_anthropic(path) else openai_error(told)
    headers = {}
    retry_after = getattr(told, "retry_after", None)
    if retry_after is None and told.http_status == 503:
        retry_after = 2
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    if isinstance(told, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(told, (SlowRequestError, TooLargeError)):
        # The rest of the body is not going to be read.
        headers["connection"] = "close"
    return JSONResponse(body, told.http_status, headers)


def rename(error: MacspecError, names: dict[str, str]) -> MacspecError:
    """The same error with the engine's field name replaced by the one the client used."""
    if isinstance(error, RequestError) and error.param in names:
        renamed = type(error)(error.message, param=names[error.param])
        return renamed
    return error
