"""uvicorn with the limits it lacks: time for headers, number of connections, and JSON for requests that are none."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import sys
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from macspec.errors import BusyError, MacspecError
from macspec.server.answers import new_id
from macspec.server.config import ServerConfig
from macspec.server.errors import BadRequestError, openai_error


class PortError(MacspecError):
    """The address cannot be listened on."""

    exit_code = 2
    code = "address_unavailable"


def listen(config: ServerConfig) -> socket.socket:
    """A listening socket, bound before the model is loaded so that a taken port is known at once."""
    where = f"{config.host}:{config.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise PortError(f"There is no address {config.host!r} to listen on ({error.strerror}).") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            sentence = f"Port {config.port} is already in use; stop the other program or choose another with --port."
        elif error.errno == errno.EACCES:
            sentence = f"Port {config.port} needs administrator rights; choose one above 1023 with --port."
        else:
            sentence = f"Cannot listen on {where}: {error.strerror}."
        raise PortError(sentence) from error
    return listener


def protocol_for(config: ServerConfig) -> type[H11Protocol]:
    """The connection handler with this server's limits."""

    class Connection(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows asyncio's signature
            if len(self.connections) > config.max_connections:
                self._refuse(503, BusyError("Too many connections are open; close some."))
                return
            self._wait_for_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            between = self.cycle is None or self.cycle.response_complete
            if between and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._wait_for_request()
            elif not between:
                self._stop_waiting()

        def _wait_for_request(self) -> None:
            if self._late is None:
                self._late = self.loop.call_later(config.read_timeout, self._too_late)

        def _stop_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _too_late(self) -> None:
            self._late = None
            if not self.transport.is_closing():
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            # Called while the parser's error is being handled; only it knows that the header was too long.
            error = sys.exc_info()[1]
            too_long = getattr(error, "error_status_hint", 400) == 431
            limit = config.max_header >> 10
            sentence = f"The header is longer than {limit} KiB." if too_long else "That is not an HTTP request."
            self._refuse(431 if too_long else 400, BadRequestError(sentence, code="invalid_http"))

        def _refuse(self, status: int, error: MacspecError) -> None:
            if self.cycle is not None:
                # The application, if it is at work on this request, must not answer it as well.
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            body = json.dumps(openai_error(error)).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"x-request-id", new_id("req_").encode()),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            # In the middle of another answer there is no room for this one.
            with contextlib.suppress(h11.LocalProtocolError):
                for event in (
                    h11.Response(status_code=status, headers=headers),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            self._stop_waiting()
            self.transport.close()

    return Connection


class Server(uvicorn.Server):
    """uvicorn's server, without its hold on the process's signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command, which has an engine to end as well."""
        yield


def make_server(app: Any, config: ServerConfig) -> Server:
    """A server for sockets made by `listen`."""
    return Server(
        uvicorn.Config(
            app,
            http=protocol_for(config),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(config.idle_timeout),
            timeout_graceful_shutdown=int(config.shutdown_timeout) + 3,
            h11_max_incomplete_event_size=config.max_header,
            # The client's address decides about fairness; a header must not change it.
            proxy_headers=False,
        )
    )
