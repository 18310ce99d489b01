"""What the server is told at start; nothing here can be changed by a request."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class ServerConfig:
    """Limits and permissions. Times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    #: Names besides the model's own under which it may be asked for.
    aliases: tuple[str, ...] = ()
    #: Host names besides loopback, IP literals, ``*.local`` and this machine's own.
    allowed_hosts: tuple[str, ...] = ()
    #: Browser origins besides those on this machine.
    allowed_origins: tuple[str, ...] = ()
    #: Temperature of requests that name none. Greedy, so that the same prompt gives the same text.
    temperature: float = 0.0
    #: Requests answered at the same time, in turn.
    parallel: int = 4
    #: Requests that may wait for their turn.
    max_queue: int = 64
    max_body: int = 32 * MIB
    max_header: int = 64 << 10
    max_connections: int = 256
    max_messages: int = 10_000
    max_tools: int = 512
    #: Nesting of the JSON body.
    max_depth: int = 100
    max_choices: int = 16
    #: For the header of a request, and again for its body.
    read_timeout: float = 30.0
    #: A connection without a request is closed after this long.
    idle_timeout: float = 75.0
    #: A client that takes nothing for this long is gone.
    write_timeout: float = 120.0
    #: Silence in a stream before a comment is sent.
    keep_alive: float = 5.0
    #: How long the status line of a stream waits for the first event, so that a refusal can have its own status.
    header_delay: float = 2.0
    #: How long a request waits for a model that is being loaded.
    loading_timeout: float = 300.0
    #: How long running answers may go on after a stop was asked for.
    shutdown_timeout: float = 5.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
