"""The client of a real engine process: starts it, talks to it, replaces it when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from macspec.errors import EngineDiedError, MacspecError, RequestError
from macspec.request import Event, GenerationRequest, Round, Text, ToolCall, event_from_wire
from macspec.worker.client import ClientState, ProgressCallback
from macspec.worker.protocol import (
    VERSION,
    EngineInfo,
    EngineOptions,
    EngineStats,
    LoadProgress,
    ProtocolError,
    body_length,
    decode,
    encode,
    error_from_wire,
)

T = TypeVar("T")
logger = logging.getLogger("macspec.worker")

#: Lines of what the process printed last that are kept, enough for the stacks of its threads, and bytes of each.
OUTPUT_LINES, OUTPUT_WIDTH = 200, 500


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How the engine process is run."""

    #: ``module:class`` of the engine; tests name their own.
    factory: str = "macspec.runtime:Runtime"
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Deaths in a row, without an answer in between, after which the engine is not started again by itself.
    max_deaths: int = 3
    #: Seconds one engine step, or silence, may last before the process is ended as stuck.
    stall_seconds: float = 300.0
    #: Seconds the process gets to end by itself.
    close_seconds: float = 5.0


class _Stream:
    """One submitted request: batches of events, then None or an error."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.items: asyncio.Queue[list[Event] | MacspecError | None] = asyncio.Queue()
        #: Something of the answer has been delivered, so it cannot start again unseen.
        self.visible = False
        self.replayed = False


class ProcessClient:
    """`EngineClient` of an engine in a child process, which is replaced when it dies."""

    def __init__(self, engine: EngineOptions | None = None, *, process: ProcessOptions | None = None) -> None:
        self._engine_options = engine or EngineOptions()
        self._options = process or ProcessOptions()
        self._state: ClientState = "stopped"
        self._changed = asyncio.Event()
        self._info: EngineInfo | None = None
        self._failure: MacspecError | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        #: The start of a process that is under way.
        self._launching: asyncio.Task[Any] | None = None
        self._streams: dict[str, _Stream] = {}
        self._tickets: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._progress: dict[int, ProgressCallback] = {}
        self._next_ticket = 0
        self._output: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._deaths = 0
        self._restarts = 0
        self._why_killed = ""
        #: How the newest process to die ended, as a sentence.
        self._how_died = ""
        self._sign_of_life = 0.0
        self._step_seconds = 0.0

    @property
    def state(self) -> ClientState:
        """See `EngineClient.state`."""
        return self._state

    @property
    def info(self) -> EngineInfo | None:
        """See `EngineClient.info`."""
        return self._info

    @property
    def step_seconds(self) -> float:
        """See `EngineClient.step_seconds`."""
        return self._step_seconds

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None when there is none."""
        return None if self._process is None else self._process.pid

    async def start(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `EngineClient.start`."""
        if self._state == "ready" and self._info is not None:
            return self._info
        self._deaths = 0
        return await self._launch(progress)

    async def restart(self, progress: ProgressCallback | None = None) -> EngineInfo:
        """See `EngineClient.restart`."""
        self._set_state("loading")
        await self._stop_launching()
        await self._end_process()
        self._fail_streams(EngineDiedError("The engine was restarted. Send the request again."))
        self._deaths = 0
        self._restarts += 1
        return await self._launch(progress)

    async def load(
        self, model: str | None = None, drafter: str | None = None, progress: ProgressCallback | None = None
    ) -> EngineInfo:
        """See `EngineClient.load`."""
        old = self._engine_options
        # Another target needs another drafter, so an unnamed one goes back to the target's default.
        self._engine_options = dataclasses.replace(old, model=model or old.model, drafter=drafter)
        if self._process is None or self._launching is not None:
            return await self.start(progress)
        self._set_state("loading")
        try:
            self._info = await self._load(progress)
        except MacspecError:
            self._engine_options = old
            if self._process is not None:
                self._set_state("ready" if self._info is not None else "failed")
            raise
        self._set_state("ready")
        return self._info

    async def close(self) -> None:
        """See `EngineClient.close`."""
        self._set_state("stopped")
        await self._stop_launching()
        await self._end_process()
        self._fail_streams(EngineDiedError("The engine was closed."))

    async def cancel(self, request_id: str) -> None:
        """See `EngineClient.cancel`."""
        if request_id in self._streams:
            self._post({"type": "cancel", "id": request_id})

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        if self._process is None:
            return EngineStats(restarts=self._restarts)
        reply = await self._ask({"type": "stats"})
        return dataclasses.replace(EngineStats.from_wire(reply["stats"]), restarts=self._restarts)

    async def count_tokens(self, request: GenerationRequest) -> int:
        """See `EngineClient.count_tokens`."""
        return len(await self.tokenize(request))

    async def tokenize(self, request: GenerationRequest) -> tuple[int, ...]:
        """See `EngineClient.tokenize`."""
        request.check()
        await self._until_ready()
        reply = await self._ask({"type": "tokenize", "request": request.to_wire()})
        return tuple(reply["tokens"])

    async def submit(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """See `EngineClient.submit`."""
        request.check()
        await self._until_ready()
        if request.id in self._streams:
            raise RequestError(f"A request with the id {request.id!r} is already running.", param="id")
        stream = self._streams[request.id] = _Stream(request)
        ended = False
        try:
            await self._send({"type": "submit", "id": request.id, "request": request.to_wire()})
            while True:
                item = await stream.items.get()
                if item is None:
                    ended = True
                    return
                if isinstance(item, MacspecError):
                    ended = True
                    raise item
                for event in item:
                    yield event
                self._post({"type": "consumed", "id": request.id, "count": 1})
        finally:
            del self._streams[request.id]
            if not ended:
                self._post({"type": "cancel", "id": request.id})

    # The process

    async def _launch(self, progress: ProgressCallback | None) -> EngineInfo:
        """Start the process and load, instead of a start that is under way; see `_start_and_load`."""
        await self._stop_launching()
        self._set_state("loading")
        task = self._launch_task(self._start_and_load(progress))
        try:
            return await task
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is None or own.cancelling():
                raise
            raise _superseded() from None

    def _launch_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._launching = asyncio.get_running_loop().create_task(work)

        def done(task: asyncio.Task[T]) -> None:
            if self._launching is task:
                self._launching = None

        task.add_done_callback(done)
        return task

    async def _stop_launching(self) -> None:
        """Give up a start that is under way, with the process it made and the requests that wait for it."""
        if (task := self._launching) is not None:
            task.cancel()
            await asyncio.wait({task})
            self._fail_streams(_superseded())

    async def _start_and_load(self, progress: ProgressCallback | None) -> EngineInfo:
        """Start the process and load; on failure the state is ``failed`` and the reason is raised."""
        try:
            self._info = await self._begin(progress)
        except BaseException as error:
            if isinstance(error, MacspecError):
                self._failure = error
            if self._state == "loading":
                self._set_state("failed")
            raise
        self._set_state("ready")
        return self._info

    async def _begin(self, progress: ProgressCallback | None) -> EngineInfo:
        """Start the process and load; no process is left when that fails."""
        try:
            await self._spawn()
            return await self._load(progress)
        except BaseException as error:
            await self._end_process()
            if isinstance(error, OSError):
                raise MacspecError(f"The engine process cannot be started: {error.strerror or error}.") from error
            raise

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **self._options.environment, "PYTHONUNBUFFERED": "1"}
        try:
            with theirs:
                # -P: a json.py in the current folder must not be imported by the engine.
                process = self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "macspec.worker.process"),
                    *("--fd", str(theirs.fileno()), "--engine", self._options.factory),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    start_new_session=True,
                )
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self._output.clear()
        self._why_killed = ""
        self._alive()
        greeted: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._tickets[0] = greeted
        output = self._spawn_task(self._keep_output(process))
        self._spawn_task(self._pump(process, reader, self._writer, output))
        self._watcher = self._spawn_task(self._watch(process))
        hello = await greeted
        if hello.get("version") != VERSION:
            raise ProtocolError(
                f"The engine process speaks version {hello.get('version')} of the protocol and this one {VERSION}. "
                "Reinstall macspec: two versions are mixed."
            )

    def _spawn_task(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, progress: ProgressCallback | None) -> EngineInfo:
        message = {"type": "load", "options": self._engine_options.to_wire()}
        return EngineInfo.from_wire((await self._ask(message, progress))["info"])

    async def _keep_output(self, process: asyncio.subprocess.Process) -> None:
        """Keep what the process prints by lines, in however many pieces it comes: a stack is written word by word."""
        assert process.stdout is not None
        rest = b""
        try:
            while data := await process.stdout.read(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:OUTPUT_WIDTH]
                for line in lines:
                    self._keep_line(line)
        finally:
            self._keep_line(rest)

    def _keep_line(self, line: bytes) -> None:
        if line:
            text = line[:OUTPUT_WIDTH].decode("utf-8", "replace")
            self._output.append(text)
            logger.debug("engine output: %s", text.encode("unicode_escape").decode())

    async def _pump(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: asyncio.Task[None],
    ) -> None:
        """Take messages until the process is gone, then clean up after it."""
        try:
            while True:
                header = await reader.readexactly(4)
                self._dispatch(decode(await reader.readexactly(body_length(header))))
        except (asyncio.IncompleteReadError, OSError):
            pass
        except ProtocolError as error:
            self._kill(process, error.message)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), self._options.close_seconds)
        if process.returncode is None:
            self._kill(process, "it closed its connection but did not end")
            await process.wait()
        # Something the engine started may keep the pipe open.
        await asyncio.wait({output}, timeout=1.0)
        output.cancel()
        await asyncio.wait({output})
        if self._watcher is not None:
            self._watcher.cancel()
        self._on_death(process)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """End a process that is stuck in one step, or silent."""
        limit = self._options.stall_seconds
        while process.returncode is None and self._process is process:
            await asyncio.sleep(min(5.0, limit / 4))
            silent = asyncio.get_running_loop().time() - self._sign_of_life
            stuck = max(silent, self._step_seconds)
            if stuck > limit and process.returncode is None:
                self._kill(process, f"it did not finish a step within {stuck:.0f} seconds")
                return

    def _kill(self, process: asyncio.subprocess.Process, why: str = "") -> None:
        self._why_killed = why
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def _end_process(self) -> None:
        process, writer = self._process, self._writer
        if process is None:
            return
        self._process = self._writer = None
        if writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write(encode({"type": "shutdown"}))
        try:
            await asyncio.wait_for(process.wait(), self._options.close_seconds)
        except TimeoutError:
            self._kill(process)
            await process.wait()
        if self._watcher is not None:
            self._watcher.cancel()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_death(self, process: asyncio.subprocess.Process) -> None:
        self._how_died = self._obituary(process.returncode)
        sentence = f"{self._how_died} Send the request again."
        for ticket in self._tickets.values():
            if not ticket.done():
                ticket.set_exception(EngineDiedError(sentence))
        self._tickets.clear()
        self._progress.clear()
        self._step_seconds = 0.0
        if self._process is not process:
            return
        # Not by our wish: replace it, unless it dies again and again.
        logger.warning("%s", sentence.encode("unicode_escape").decode())
        self._process = self._writer = None
        self._deaths += 1
        if self._launching is not None and not self._launching.done():
            # Before it was ready; who starts it goes on.
            return
        was_ready = self._state == "ready"
        revive = was_ready and self._deaths < self._options.max_deaths
        error = EngineDiedError(sentence) if revive or not was_ready else self._given_up()
        for stream in list(self._streams.values()):
            if stream.visible or stream.replayed or not revive:
                stream.items.put_nowait(error)
            else:
                stream.replayed = True
        if revive:
            self._set_state("loading")
            self._launch_task(self._revive())
        elif was_ready:
            self._failure = error
            self._set_state("failed")

    async def _revive(self) -> None:
        """Replace a dead engine; a replacement that dies while it loads is replaced as well, as often as any."""
        waiting = [stream for stream in self._streams.values() if stream.replayed]
        failure: MacspecError | None = None
        for _ in range(self._options.max_deaths - self._deaths):
            self._restarts += 1
            try:
                self._info, failure = await self._begin(None), None
                break
            except EngineDiedError:
                failure = self._given_up()
            except MacspecError as error:
                failure = error
                break
        self._failure = failure or self._failure
        self._set_state("ready" if failure is None else "failed")
        for stream in waiting:
            if failure is not None:
                stream.items.put_nowait(failure)
            elif self._streams.get(stream.request.id) is stream:
                request = stream.request
                self._post({"type": "submit", "id": request.id, "request": request.to_wire()})

    def _given_up(self) -> EngineDiedError:
        times = f"That was {self._deaths} times in a row, so it is not started again by itself."
        return EngineDiedError(f"{self._how_died} {times}")

    def _obituary(self, code: int | None) -> str:
        """How the process ended, as a sentence for the person who waits for an answer."""
        tail = "\n".join(self._output)
        if self._why_killed:
            how = f"was ended because {self._why_killed}"
        elif "Insufficient Memory" in tail or "kIOGPUCommandBufferCallbackErrorOutOfMemory" in tail:
            how = "was ended by the GPU driver because memory ran out; use a smaller model or a shorter context"
        elif code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"The engine process was ended by {signal.Signals(-code).name}."
            how = f"was ended by signal {-code}"
        else:
            last = next((line.strip() for line in reversed(self._output) if line.strip()), "")
            how = f"ended with code {code}" + (f" ({last[:200]})" if last else "")
        return f"The engine process {how}."

    # Messages

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        self._alive()
        kind, stream = message["type"], self._streams.get(message.get("id", ""))
        if kind == "events" and stream is not None:
            events = [event_from_wire(values) for values in message["events"]]
            stream.visible = stream.visible or any(isinstance(event, (Round, Text, ToolCall)) for event in events)
            stream.items.put_nowait(events)
        elif kind == "done":
            self._deaths = 0
            if stream is not None:
                stream.items.put_nowait(None)
        elif kind == "failed" and "id" in message:
            if stream is not None:
                stream.items.put_nowait(error_from_wire(message["error"]))
        elif kind == "heartbeat":
            self._step_seconds = float(message["step_seconds"])
        elif kind == "progress":
            if (progress := self._progress.get(message["ticket"])) is not None:
                progress(LoadProgress.from_wire(message["progress"]))
        else:
            ticket = self._tickets.pop(message.get("ticket", 0), None)
            if ticket is None or ticket.done():
                return
            if kind == "failed":
                ticket.set_exception(error_from_wire(message["error"]))
            else:
                ticket.set_result(dict(message))

    async def _ask(self, message: dict[str, Any], progress: ProgressCallback | None = None) -> dict[str, Any]:
        self._next_ticket += 1
        number = self._next_ticket
        ticket: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._tickets[number] = ticket
        if progress is not None:
            self._progress[number] = progress
        try:
            await self._send({**message, "ticket": number})
            return await ticket
        finally:
            self._tickets.pop(number, None)
            self._progress.pop(number, None)

    def _post(self, message: Mapping[str, Any]) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(encode(message))

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self._writer is None:
            raise self._failure or EngineDiedError("The engine is not running. Start it, then send the request again.")
        frame = encode(message)
        with contextlib.suppress(OSError):
            # A dead process shows at the reading end, with the reason.
            self._writer.write(frame)
            await self._writer.drain()

    def _alive(self) -> None:
        self._sign_of_life = asyncio.get_running_loop().time()

    def _set_state(self, state: ClientState) -> None:
        self._state = state
        if state != "loading":
            self._changed.set()
            self._changed = asyncio.Event()

    async def _until_ready(self) -> None:
        while self._state == "loading":
            await self._changed.wait()
        if self._state == "failed":
            raise self._failure or EngineDiedError("The engine could not be started.")
        if self._state == "stopped":
            raise EngineDiedError("The engine is not running. Start it, then send the request again.")

    def _fail_streams(self, error: MacspecError) -> None:
        for stream in self._streams.values():
            stream.items.put_nowait(error)


def _superseded() -> EngineDiedError:
    return EngineDiedError("The engine was closed or started anew before it was ready.")
