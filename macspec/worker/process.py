"""The engine process: ``python -m macspec.worker.process --fd N``.

The main thread owns the engine and everything on the device. It steps the live requests in turn, one round each, so
that a second request is not starved. A reader thread takes messages (a cancel counts at once, statistics are answered
even while a step runs) and a third one sends heartbeats. Messages use a socket of their own: whatever a library prints
goes to the ordinary output, which the parent keeps for error reports.

When the parent goes away, its end of the socket closes and this process ends.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import gc
import importlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from macspec.errors import BusyError, EngineDiedError, RequestError
from macspec.request import (
    Event,
    Finished,
    GenerationRequest,
    Round,
    Started,
    event_to_wire,
)
from macspec.worker.protocol import (
    HEARTBEAT,
    VERSION,
    WINDOW,
    EngineInfo,
    EngineOptions,
    EngineStats,
    LoadProgress,
    encode,
    error_to_wire,
    read_message,
)

DEFAULT_ENGINE = "macspec.runtime:Runtime"

#: Seconds the engine thread gets to finish its step after the parent is gone.
GRACE = 5.0


class EngineLike(Protocol):
    """What the worker needs from an engine. Every method is called on the main thread.

    Used when there: ``memory()``, a mapping of ``active``, ``cache``, ``peak`` and ``prefix_cache`` to bytes, and
    ``close()``, which gives the device memory back.
    """

    def info(self) -> dict[str, Any]:
        """What is loaded: the fields of `EngineInfo`."""

    def generate(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """Events of one answer; several of these iterators are advanced in turn."""

    def tokenize(self, request: GenerationRequest) -> Sequence[int]:
        """Prompt token ids, chat template included."""


class EngineFactory(Protocol):
    """Where engines come from; `Engine` itself in real life."""

    def load(
        self, model: str | None, drafter: str | None, *, progress: Callable[[str, int, int], None], **options: Any
    ) -> EngineLike:
        """Load target and drafter."""


class _Live:
    """A request that is being answered."""

    def __init__(self, request: GenerationRequest, events: Iterator[Event]) -> None:
        self.request = request
        self.events = events
        self.credit = WINDOW


class Worker:
    """Answers the messages of one parent until it says ``shutdown`` or disappears."""

    def __init__(self, connection: socket.socket, factory: EngineFactory) -> None:
        self._connection = connection
        self._factory = factory
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._write = threading.Lock()
        self._cancelled: set[str] = set()
        self._closing = threading.Event()
        self._finished = threading.Event()
        self._engine: EngineLike | None = None
        self._options = EngineOptions()
        self._live: deque[_Live] = deque()
        self._waiting: deque[GenerationRequest] = deque()
        self._born = time.monotonic()
        self._step_began: float | None = None
        self._stats = EngineStats(pid=os.getpid())
        self._memory_read = 0.0

    def run(self) -> None:
        """Serve until the end; returns when the engine is closed."""
        self._send({"type": "hello", "version": VERSION, "pid": os.getpid()})
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        try:
            while not self._closing.is_set():
                self._take()
                self._admit()
                live = self._next()
                if live is not None:
                    self._step(live)
        finally:
            self._unload()
            self._finished.set()

    # Other threads

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while (message := read_message(self._connection.recv)) is not None:
                if message["type"] == "stats":
                    self._reply_stats(message)
                    continue
                if message["type"] == "cancel":
                    self._cancelled.add(message["id"])
                elif message["type"] == "shutdown":
                    break
                self._inbox.put(message)
        self._closing.set()
        self._inbox.put({"type": "wake"})
        if not self._finished.wait(GRACE):
            # A device call that never returns must not keep the process and its memory alive.
            os._exit(1)

    def _beat(self) -> None:
        while not self._finished.wait(HEARTBEAT):
            self._send({"type": "heartbeat", "step_seconds": self._step_age(), "active": len(self._live)})

    def _step_age(self) -> float:
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def _reply_stats(self, message: Mapping[str, Any]) -> None:
        stats = dataclasses.replace(
            self._stats,
            uptime=time.monotonic() - self._born,
            active=len(self._live),
            waiting=len(self._waiting),
            step_seconds=self._step_age(),
        )
        self._send({"type": "stats", "ticket": message["ticket"], "stats": stats.to_wire()})

    def _send(self, message: Mapping[str, Any]) -> None:
        frame = encode(message)
        try:
            with self._write:
                self._connection.sendall(frame)
        except OSError:
            self._closing.set()

    # The engine's thread

    def _take(self) -> None:
        """Handle every message that has come; wait for one if no request can be stepped."""
        while True:
            try:
                message = self._inbox.get(block=not self._runnable())
            except queue.Empty:
                return
            if self._closing.is_set():
                return
            getattr(self, f"_on_{message['type']}", self._on_unknown)(message)

    def _runnable(self) -> bool:
        if self._waiting and len(self._live) < self._options.parallel:
            return True
        return any(self._ready(live) for live in self._live)

    def _ready(self, live: _Live) -> bool:
        return live.credit > 0 or live.request.id in self._cancelled

    def _next(self) -> _Live | None:
        """The live request whose turn it is, moved to the end of the row."""
        for _ in range(len(self._live)):
            live = self._live.popleft()
            self._live.append(live)
            if self._ready(live):
                return live
        return None

    def _admit(self) -> None:
        while self._waiting and len(self._live) < self._options.parallel:
            request = self._waiting.popleft()
            if self._engine is None:
                self._fail(request.id, EngineDiedError("No model is loaded; load one, then send the request again."))
                continue
            self._live.append(_Live(request, self._events(self._engine, request)))

    def _events(self, engine: EngineLike, request: GenerationRequest) -> Iterator[Event]:
        def cancelled() -> bool:
            return request.id in self._cancelled or self._closing.is_set()

        return engine.generate(request, cancelled)

    def _step(self, live: _Live) -> None:
        """Advance one request to the end of its round, its prompt chunk or its answer and send what happened."""
        events: list[Event] = []
        failure: BaseException | None = None
        ended = False
        self._step_began = time.monotonic()
        try:
            while not (events and _ends_step(events)):
                events.append(next(live.events))
        except StopIteration:
            ended = True
        except Exception as error:
            failure, ended = error, True
            if not isinstance(error, RequestError):
                traceback.print_exc()
        elapsed, self._step_began = self._step_age(), None
        self._count(events, elapsed)
        if events:
            live.credit -= 1
            wires = [event_to_wire(event) for event in events]
            self._send({"type": "events", "id": live.request.id, "events": wires})
        if ended:
            self._end(live, failure)
        if isinstance(failure, EngineDiedError):
            # The device serves this process no more; the parent starts another.
            raise SystemExit(1)
        if ended or time.monotonic() - self._memory_read > 1.0:
            self._read_memory()

    def _end(self, live: _Live, failure: BaseException | None) -> None:
        self._live.remove(live)
        if failure is None:
            self._send({"type": "done", "id": live.request.id})
            self._cancelled.discard(live.request.id)
        else:
            self._fail(live.request.id, failure)

    def _fail(self, request_id: str, failure: BaseException) -> None:
        self._stats = dataclasses.replace(self._stats, failed=self._stats.failed + 1)
        self._cancelled.discard(request_id)
        self._send({"type": "failed", "id": request_id, "error": error_to_wire(failure)})

    def _count(self, events: Sequence[Event], elapsed: float) -> None:
        add: dict[str, float] = {"busy_seconds": elapsed}

        def plus(**values: float) -> None:
            for name, value in values.items():
                add[name] = add.get(name, 0) + value

        for event in events:
            if isinstance(event, Started):
                plus(requests=1, prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens)
            elif isinstance(event, Round):
                plus(rounds=1, drafted=event.drafted, verified=event.verified, accepted=event.accepted)
                plus(generation_tokens=event.committed, parked_rounds=int(event.verified == 0))
            elif isinstance(event, Finished):
                plus(**{"cancelled" if event.reason == "cancelled" else "completed": 1})
        values = {name: getattr(self._stats, name) + value for name, value in add.items()}
        self._stats = dataclasses.replace(self._stats, **values)

    def _read_memory(self) -> None:
        measure: Callable[[], Mapping[str, int]] | None = getattr(self._engine, "memory", None)
        self._memory_read = time.monotonic()
        if measure is None:
            return
        memory = measure()
        self._stats = dataclasses.replace(
            self._stats,
            memory_active=memory.get("active", 0),
            memory_cache=memory.get("cache", 0),
            memory_peak=memory.get("peak", 0),
            memory_footprint=memory.get("footprint", 0),
            prefix_cache_bytes=memory.get("prefix_cache", 0),
        )

    # Messages

    def _on_submit(self, message: Mapping[str, Any]) -> None:
        try:
            self._waiting.append(GenerationRequest.from_wire(message["request"]))
        except Exception as error:
            self._fail(message["id"], error)

    def _on_cancel(self, message: Mapping[str, Any]) -> None:
        request_id = message["id"]
        if any(live.request.id == request_id for live in self._live):
            return
        # Not begun, or already over when the message came.
        self._cancelled.discard(request_id)
        waiting = next((request for request in self._waiting if request.id == request_id), None)
        if waiting is not None:
            self._waiting.remove(waiting)
            events: list[Event] = [Finished(reason="cancelled")]
            self._count(events, 0.0)
            wires = [event_to_wire(event) for event in events]
            self._send({"type": "events", "id": request_id, "events": wires})
            self._send({"type": "done", "id": request_id})

    def _on_consumed(self, message: Mapping[str, Any]) -> None:
        for live in self._live:
            if live.request.id == message["id"]:
                live.credit += int(message["count"])

    def _on_tokenize(self, message: Mapping[str, Any]) -> None:
        try:
            if self._engine is None:
                raise EngineDiedError("No model is loaded; load one first.")
            request = GenerationRequest.from_wire(message["request"])
            request.check()
            tokens = list(self._engine.tokenize(request))
        except Exception as error:
            self._send({"type": "failed", "ticket": message["ticket"], "error": error_to_wire(error)})
        else:
            self._send({"type": "tokens", "ticket": message["ticket"], "tokens": tokens})

    def _on_load(self, message: Mapping[str, Any]) -> None:
        ticket = message["ticket"]

        def progress(stage: str, done: int, total: int) -> None:
            step = LoadProgress(stage, done, total)
            self._send({"type": "progress", "ticket": ticket, "progress": step.to_wire()})

        for live in list(self._live):
            self._end(live, BusyError("The model is being replaced; send the request again."))
        previous, had_engine = self._options, self._engine is not None
        options = EngineOptions.from_wire(message["options"])
        try:
            # Two models rarely fit: the old one goes before the new one comes.
            self._load(options, progress)
        except Exception as error:
            if not hasattr(error, "message"):
                traceback.print_exc()
            if had_engine:
                with contextlib.suppress(Exception):
                    self._load(previous, progress)
            kept = self._info() if self._engine is not None else None
            self._send({"type": "failed", "ticket": ticket, "error": error_to_wire(error), "info": kept})
        else:
            self._send({"type": "loaded", "ticket": ticket, "info": self._info()})

    def _load(self, options: EngineOptions, progress: Callable[[str, int, int], None]) -> None:
        self._unload()
        extra = dict(options.extra)
        if options.context is not None:
            extra["context"] = options.context
        self._engine = self._factory.load(options.model, options.drafter, progress=progress, **extra)
        self._options = options
        self._read_memory()

    def _info(self) -> dict[str, Any]:
        assert self._engine is not None
        return EngineInfo(**self._engine.info()).to_wire()

    def _unload(self) -> None:
        engine, self._engine = self._engine, None
        close: Callable[[], None] | None = getattr(engine, "close", None)
        if close is not None:
            close()
        del engine, close
        # Weights in reference cycles would stay beside the next model's.
        gc.collect()

    def _on_wake(self, message: Mapping[str, Any]) -> None:
        """Nothing to do: the message only ends a wait."""

    def _on_unknown(self, message: Mapping[str, Any]) -> None:
        print(f"The engine process ignores a message of type {message['type']!r}.", file=sys.stderr)


def _ends_step(events: Sequence[Event]) -> bool:
    """Whether another request may have its turn: after anything but a lone round, whose text comes right behind."""
    return not isinstance(events[-1], Round) or sum(isinstance(event, Round) for event in events) > 1


def find_factory(name: str) -> EngineFactory:
    """The engine class named ``module:attribute``."""
    module, _, attribute = name.partition(":")
    factory: EngineFactory = getattr(importlib.import_module(module), attribute)
    return factory


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the child."""
    parser = argparse.ArgumentParser(prog="macspec-engine")
    parser.add_argument("--fd", type=int, required=True, help="socket inherited from the parent")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, help="module:class of the engine")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    # Ctrl-C in a terminal reaches the whole group; only the parent decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=options.fd)
    os.set_inheritable(options.fd, False)
    with connection:
        Worker(connection, find_factory(options.engine)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
