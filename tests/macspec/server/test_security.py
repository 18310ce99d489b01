"""Who and what is turned away before anything is read or generated."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import pytest

from macspec.errors import MacspecError, RequestError
from macspec.server.body import parse
from macspec.server.command import add_arguments, config_from
from macspec.server.config import ServerConfig
from macspec.server.errors import AuthenticationError, ForbiddenError
from macspec.server.security import Guard

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

BODY = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "localhost",
        "LOCALHOST:1",
        "a.localhost",
        "mac.local",
        "[::1]:80",
        "10.0.0.5",
        None,
    ],
)
def test_hosts_that_cannot_be_rebound(host: str | None) -> None:
    Guard(ServerConfig()).check_host(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io", "", " ", "a@localhost/", "[::1"]
    + ["localhost evil.example", "evil.example#.localhost", "evil.example?.local", "::", "[localhost"],
)
def test_foreign_hosts(host: str) -> None:
    with pytest.raises(ForbiddenError):
        Guard(ServerConfig()).check_host(host)
    Guard(ServerConfig(allowed_hosts=("evil.example",))).check_host("evil.example:80")


@pytest.mark.parametrize(
    "origin", [None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:5", "http://a.localhost"]
)
def test_own_origins(origin: str | None) -> None:
    Guard(ServerConfig()).check_origin(origin)


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", "http://localhost.evil.example", "file://", "http://10.0.0.5", "http://[", "x"]
    + ["chrome-extension://localhost", "http://mac.local"],
)
def test_foreign_origins(origin: str) -> None:
    with pytest.raises(ForbiddenError):
        Guard(ServerConfig()).check_origin(origin)


def test_listed_origin() -> None:
    Guard(ServerConfig(allowed_origins=("https://chat.example/",))).check_origin("https://chat.example")


def test_keys() -> None:
    guard = Guard(ServerConfig(api_key="sécret"))
    for headers in ({"authorization": "Bearer sécret"}, {"authorization": "bearer  sécret"}, {"x-api-key": "sécret"}):
        guard.check_key("/v1/models", headers)
    wrong: list[dict[str, str]] = [
        {},
        {"authorization": "sécret"},
        {"authorization": "Basic sécret"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer sécret2"},
        {"x-api-key": ""},
        {"authorization": "Bearer x", "x-api-key": "sécret"},
    ]
    for headers in wrong:
        with pytest.raises(AuthenticationError):
            guard.check_key("/v1/models", headers)
    guard.check_key("/health", {})


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, key: bytes) -> bool:
        compared.append((given, key))
        return False

    monkeypatch.setattr("macspec.server.security.hmac.compare_digest", compare)
    guard = Guard(ServerConfig(api_key="a key"))
    for given in ("", "a", "a key", "a much longer key"):
        with pytest.raises(AuthenticationError):
            guard.check_key("/v1/models", {"x-api-key": given})
    # Digests: even their length tells nothing about the key's.
    assert len(compared) == 4 and {len(value) for pair in compared for value in pair} == {32}


async def test_every_route_but_health_needs_the_key(start: Start) -> None:
    server = await start(api_key="k")
    gets = ["/", "/v1/models", "/v1/models/x", "/metrics", "/v1/metrics", "/nothing", "/health/x", "//health"]
    posts = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/v1/embeddings"]
    posts += ["/v1/messages/count_tokens", "/chat/completions"]
    responses = [await server.http.get(server.url + path) for path in gets] + [
        await server.post(p, BODY) for p in posts
    ]
    assert {response.status_code for response in responses} == {401}
    assert responses[0].json()["error"]["code"] == "invalid_api_key"
    assert responses[0].headers["www-authenticate"] == "Bearer"
    assert (await server.http.get("/health")).status_code == 200
    assert (await server.post("/v1/chat/completions", BODY, authorization="Bearer k")).status_code == 200


async def test_a_key_beyond_ascii_is_known_in_both_encodings_of_a_header(start: Start) -> None:
    server = await start(api_key="schlüssel")
    for sent, status in (("schlüssel".encode(), 200), ("schlüssel".encode("latin-1"), 200), (b"schlussel", 401)):
        head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer "
        answer = await server.raw(head + sent + b"\r\n\r\n")
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_browser_attacks(start: Start) -> None:
    server = await start()
    rebound = await server.post("/v1/chat/completions", BODY, host="evil.example")
    assert rebound.status_code == 403 and rebound.json()["error"]["code"] == "host_not_allowed"
    foreign = await server.post("/v1/chat/completions", BODY, origin="https://evil.example")
    assert foreign.status_code == 403 and "access-control-allow-origin" not in foreign.headers
    simple = await server.http.post(
        "/v1/chat/completions", content=json.dumps(BODY), headers={"content-type": "text/plain"}
    )
    assert simple.status_code == 415 and simple.json()["error"]["code"] == "unsupported_media_type"
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx"):
        response = await server.post("/v1/chat/completions", BODY, **{"content-type": kind})
        assert response.status_code == 415
    packed = await server.post("/v1/chat/completions", BODY, **{"content-encoding": "gzip"})
    assert packed.status_code == 415
    assert server.engine.requests == []


async def test_own_web_page_may_ask(start: Start) -> None:
    server = await start(api_key="k", allowed_origins=("https://chat.example",))
    for origin in ("http://localhost:3000", "https://chat.example"):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        asked["access-control-request-headers"] = "authorization,content-type,x-stainless-os,x-evil"
        preflight = await server.http.options("/v1/chat/completions", headers=asked)
        assert preflight.status_code == 204 and preflight.headers["access-control-allow-origin"] == origin
        allowed = preflight.headers["access-control-allow-headers"]
        assert "authorization" in allowed and "x-stainless-os" in allowed and "x-evil" not in allowed
        answer = await server.post("/v1/chat/completions", BODY, origin=origin, authorization="Bearer k")
        assert answer.headers["access-control-allow-origin"] == origin and "*" not in str(answer.headers)
    program = await server.post("/v1/chat/completions", BODY, authorization="Bearer k")
    assert not any(name.startswith("access-control") for name in program.headers)
    foreign = await server.http.options("/v1/chat/completions", headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403


async def test_body_limits(start: Start) -> None:
    server = await start(max_body=1000)
    big = json.dumps({**BODY, "user": "x" * 2000})
    assert (await server.post("/v1/chat/completions", big)).status_code == 413

    async def pieces() -> Any:
        for _ in range(4):
            yield b" " * 500

    chunked = await server.http.post(
        "/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"}
    )
    assert chunked.status_code == 413 and chunked.json()["error"]["code"] == "request_too_large"
    assert (await server.chat()).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b"{'a': 1}",
    ]
    + [
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 1} x',
        b"\xef\xbb\xbf{}",
    ],
)
def test_bodies_that_are_not_requests(body: bytes) -> None:
    with pytest.raises(MacspecError) as caught:
        parse(body, 100)
    assert caught.value.http_status == 400


def test_lone_surrogates_are_replaced() -> None:
    assert parse(b'{"a": ["\\ud83d x", "\\ud83d\\ude42"]}', 10) == {"a": ["\ufffd\ufffd\ufffd x", "🙂"]}


async def test_message_and_tool_limits(start: Start) -> None:
    server = await start(max_messages=3, max_tools=2)
    many = await server.chat(messages=[{"role": "user", "content": "x"}] * 4)
    assert many.json()["error"]["param"] == "messages"
    tools = [{"type": "function", "function": {"name": f"f{k}"}} for k in range(3)]
    assert (await server.chat(tools=tools)).json()["error"]["param"] == "tools"


def _config(*words: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return config_from(parser.parse_args(words))


def test_other_machines_only_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MACSPEC_API_KEY", raising=False)
    assert _config().host == "127.0.0.1" and _config().api_key is None
    for host in ("0.0.0.0", "::", "192.168.1.2", "mac.local"):
        with pytest.raises(RequestError, match="--api-key"):
            _config("--host", host)
        assert _config("--host", host, "--api-key", "k").api_key == "k"
    with pytest.raises(RequestError, match="--temperature"):
        _config("--temperature", "9")
    monkeypatch.setenv("MACSPEC_API_KEY", "e")
    assert _config("--host", "0.0.0.0").api_key == "e"
