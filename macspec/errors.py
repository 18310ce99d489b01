"""The exceptions macspec raises for the person who uses it.

Every message is a sentence: what happened, to what, what to do. Each class knows its exit code and its HTTP status, so
the command line and the server turn an error into an answer in one place each.
"""

from __future__ import annotations


class MacspecError(Exception):
    """Base of everything macspec reports as a sentence instead of a traceback."""

    exit_code = 1
    http_status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(MacspecError):
    """A value in the request is wrong; ``param`` names the field. Raised before any work is done."""

    exit_code = 2
    http_status = 400
    code = "invalid_value"


class UnsupportedError(RequestError):
    """The field is known but this model or path cannot honour it; it is never ignored."""

    code = "unsupported_parameter"


class ContextLengthError(RequestError):
    """Prompt and requested tokens do not fit the model's context."""

    code = "context_length_exceeded"


class ModelNotFoundError(MacspecError):
    """No such model, drafter or file."""

    exit_code = 2
    http_status = 404
    code = "model_not_found"


class ModelLoadError(MacspecError):
    """A model or drafter was found but cannot be used."""

    exit_code = 2
    code = "model_unusable"


class MemoryRefusedError(MacspecError):
    """The model or the request would not fit in memory; the message says what would."""

    http_status = 503
    code = "insufficient_memory"


class BusyError(MacspecError):
    """The queue is full, or another process owns the GPU."""

    http_status = 503
    code = "busy"


class EngineDiedError(MacspecError):
    """The engine process ended while a request was running."""

    http_status = 503
    code = "engine_died"
