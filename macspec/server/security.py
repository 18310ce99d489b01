"""Who may talk to this server: hosts, origins, keys. Decided from the headers alone, before a body is read."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from urllib.parse import urlsplit

from macspec.server.config import ServerConfig
from macspec.server.errors import AuthenticationError, ForbiddenError

#: The only route that answers without the key: whether the server is up says nothing about anybody.
OPEN_ROUTES = frozenset({"/health", "/v1/health"})


class Guard:
    """The rules for one server."""

    def __init__(self, config: ServerConfig) -> None:
        self._hosts = {name.lower() for name in config.allowed_hosts} | {socket.gethostname().lower()}
        self._origins = {origin.rstrip("/").lower() for origin in config.allowed_origins}
        self._key = None if config.api_key is None else _digest(config.api_key)

    def check_host(self, header: str | None) -> None:
        """Refuse a foreign name: after DNS rebinding a web page reaches us under its own one.

        Names that cannot be rebound pass: IP literals, localhost, ``*.localhost``, ``*.local``, this machine's.
        """
        if header is None:
            # HTTP/1.0 without a browser; every browser sends it.
            return
        name = _host_of(header)
        if name is None or not (_is_address(name) or self._is_own(name)):
            raise ForbiddenError(
                "This server does not answer to that host name; use 127.0.0.1 or start it with --allow-host NAME.",
                code="host_not_allowed",
            )

    def check_origin(self, header: str | None) -> None:
        """Refuse web pages from elsewhere. Programs send no origin."""
        if header is None or header.rstrip("/").lower() in self._origins:
            return
        try:
            parts = urlsplit(header)
            name = (parts.hostname or "").rstrip(".")
        except ValueError:
            name = ""
        if not (_is_loopback(name) and parts.scheme in ("http", "https")):
            raise ForbiddenError(
                "Web pages of that origin may not use this server; start it with --allow-origin ORIGIN to permit it.",
                code="origin_not_allowed",
            )

    def check_key(self, path: str, headers: dict[str, str]) -> None:
        """Refuse a request without the API key, if there is one. Takes the same time for every wrong key."""
        if self._key is None or path.rstrip("/") in OPEN_ROUTES:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(_digest(_as_sent(given)), self._key):
            raise AuthenticationError(
                "The API key is missing or wrong; send 'Authorization: Bearer KEY' with the key the server was given."
            )

    def _is_own(self, name: str) -> bool:
        return name == "localhost" or name.endswith((".localhost", ".local")) or name in self._hosts


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _as_sent(header: str) -> str:
    """A header's text: letters beyond ASCII come as the bytes of UTF-8 from most programs, from some as Latin-1."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return header


def _host_of(header: str) -> str | None:
    """The name in a Host header, without port and final dot; None if it is none."""
    if header != header.strip() or any(mark in header for mark in "/@\\? #"):
        return None
    try:
        name = urlsplit(f"//{header}").hostname
    except ValueError:
        return None
    return name.rstrip(".").lower() if name else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    name = name.lower()
    return name == "localhost" or name.endswith(".localhost") or (_is_address(name) and _loopback_address(name))


def _loopback_address(name: str) -> bool:
    return ipaddress.ip_address(name).is_loopback
