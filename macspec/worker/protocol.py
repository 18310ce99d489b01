"""Messages between the engine process and its parent: JSON objects behind a four-byte length.

A frame is a big-endian unsigned 32-bit byte count followed by that many bytes of UTF-8 JSON, always an object with a
``type``. The engine speaks first (``hello``, with the protocol version), so that a parent never talks to a stranger.

Parent to engine::

    load     {ticket, options}                 -> progress*, loaded {ticket, info} | failed {ticket, error}
    submit   {id, request}                     -> events {id, events}*, done {id} | failed {id, error}
    consumed {id, count}                          gives back credit, see `WINDOW`
    cancel   {id}                                 the request ends with a Finished event of reason "cancelled"
    tokenize {ticket, request}                 -> tokens {ticket, tokens} | failed {ticket, error}
    stats    {ticket}                          -> stats {ticket, stats}
    shutdown {}                                   finish the current round, then exit

Engine to parent, unasked: ``hello {version, pid}`` once and ``heartbeat {step_seconds, active}`` every `HEARTBEAT`
seconds from a thread of its own, so that a stuck device call shows as a growing ``step_seconds``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from macspec import errors
from macspec.errors import MacspecError
from macspec.request import Wire

#: Raised with every change that an older peer would misread.
VERSION = 1

#: Largest frame, in bytes; a longer one means that the stream is corrupt.
MAX_FRAME = 64 << 20

#: Event batches a request may be ahead of its reader before the engine stops stepping it.
WINDOW = 64

#: Seconds between heartbeats.
HEARTBEAT = 1.0

_LENGTH = struct.Struct(">I")


class ProtocolError(MacspecError):
    """The two processes do not understand each other."""

    code = "protocol_error"


@dataclass(frozen=True, slots=True)
class EngineInfo(Wire):
    """What is loaded, for people and for clients that size their prompts by it."""

    model: str
    revision: str = ""
    drafter: str | None = None
    #: Why there is no drafter; empty when there is one.
    drafter_reason: str = ""
    #: Drafter kind: ``dflash``, ``dflash2``, ``dspark``, ``domino`` or ``plain``.
    kind: str = "plain"
    vocab: int = 0
    #: Tokens of prompt and answer together.
    max_context: int = 0
    #: Draft tokens of the deepest round.
    max_depth: int = 0
    #: The chat template can think.
    thinking: bool = False
    #: The chat template has levels of thinking, ``reasoning_effort``.
    efforts: bool = False
    #: The chat template can call tools.
    tools: bool = False
    parameters_bytes: int = 0
    dtype: str = ""
    device: str = ""
    #: Milliseconds of a verification pass with 1, 2, ... rows; empty before a profile exists.
    ladder: tuple[float, ...] = ()
    policy: str = ""


@dataclass(frozen=True, slots=True)
class EngineStats(Wire):
    """Totals since the engine process started, and what it holds now. Memory is in bytes."""

    pid: int = 0
    uptime: float = 0.0
    #: Engine processes that died and were replaced, counted by the client.
    restarts: int = 0
    active: int = 0
    waiting: int = 0
    requests: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    rounds: int = 0
    parked_rounds: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    #: Seconds spent in engine steps.
    busy_seconds: float = 0.0
    #: Age of the step that is running; 0 when idle.
    step_seconds: float = 0.0
    memory_active: int = 0
    memory_cache: int = 0
    memory_peak: int = 0
    #: The process as the system sees it.
    memory_footprint: int = 0
    prefix_cache_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LoadProgress(Wire):
    """One step of loading. ``done`` of ``total`` in bytes while downloading, otherwise steps; ``total`` 0 = unknown."""

    stage: str
    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EngineOptions(Wire):
    """Everything the engine process needs to load; what `EngineClient.load` does not name stays as it was."""

    model: str | None = None
    drafter: str | None = None
    #: Context limit in tokens; None takes the model's own.
    context: int | None = None
    #: Requests stepped in turn, one round each.
    parallel: int = 4
    #: Further keyword arguments of the engine's loader.
    extra: dict[str, Any] = field(default_factory=dict)


def encode(message: Mapping[str, Any]) -> bytes:
    """A frame with this message."""
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"A message of {len(body):,} bytes is too long for the engine; the limit is {MAX_FRAME:,}.")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """The message in a frame's body; raises `ProtocolError` for anything but an object with a type."""
    try:
        message = json.loads(body.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ProtocolError(f"The engine process sent something that is not a message ({error}).") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("The engine process sent a message without a type.")
    return message


def body_length(header: bytes) -> int:
    """Bytes that follow this four-byte header."""
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME:
        raise ProtocolError(f"The engine process announced a message of {length:,} bytes; the stream is corrupt.")
    return int(length)


def read_message(receive: Callable[[int], bytes]) -> dict[str, Any] | None:
    """The next message from a blocking ``receive(n)`` such as ``socket.recv``; None at the end of the stream."""

    def exactly(count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = receive(count - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)

    header = exactly(_LENGTH.size)
    if header is None:
        return None
    body = exactly(body_length(header))
    return None if body is None else decode(body)


def error_to_wire(error: BaseException) -> dict[str, Any]:
    """JSON values of an exception; anything unforeseen becomes a `MacspecError` that names it."""
    if isinstance(error, MacspecError):
        return {"kind": type(error).__name__, "message": error.message, "param": error.param}
    # Exceptions of macspec_models have the same form but another base.
    message = str(getattr(error, "message", "") or error)
    kind = "ModelLoadError" if hasattr(error, "message") else "MacspecError"
    if getattr(error, "code", "") == errors.ModelNotFoundError.code:
        kind = "ModelNotFoundError"
    text = message if hasattr(error, "message") else f"The engine failed: {type(error).__name__}: {message}"
    return {"kind": kind, "message": text, "param": getattr(error, "param", None)}


def error_from_wire(values: Mapping[str, Any]) -> MacspecError:
    """Inverse of `error_to_wire`; an unknown kind becomes the base class."""
    kind = getattr(errors, str(values.get("kind")), MacspecError)
    if not (isinstance(kind, type) and issubclass(kind, MacspecError)):
        kind = MacspecError
    param = values.get("param")
    return kind(str(values.get("message")), param=None if param is None else str(param))
