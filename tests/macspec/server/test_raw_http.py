"""Bytes no well-behaved client sends. Never a 5xx, and the next request works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
from typing import TYPE_CHECKING

import pytest

from macspec.worker.scripted import ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Running, Start

BODY = b'{"messages":[{"role":"user","content":"hi you"}]}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GOOD = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CLOSE = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def statuses(data: bytes) -> list[int]:
    return [int(code) for code in STATUS.findall(data)]


EXCHANGES: list[tuple[bytes, list[int]]] = [
    (b"\r\n\r\n", [400]),
    (b"nonsense\r\n\r\n", [400]),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50, [400]),
    (b"GET / HTTP/1.1\r\n\r\n", [400]),
    (b"GET / HTTP/9.9\r\nHost: localhost\r\nConnection: close\r\n\r\n", [200]),
    (b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", [431]),
    (HEAD + b"Content-Length: -1\r\n\r\n", [400]),
    (HEAD + b"Content-Length: abc\r\n\r\n", [400]),
    (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", [400]),
    (HEAD + b"Content-Length: 99999999999999999999\r\nConnection: close\r\n\r\n", [413]),
    (HEAD + b"Content-Length: 33554433\r\nConnection: close\r\n\r\n", [413]),
    (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", [400]),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", [400]),
    # Both the body and the header are wrong: one refusal is enough.
    (HEAD.replace(b"json", b"xml") + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", [400]),
    (HEAD + b"Connection: close\r\n\r\n", [411]),
    (HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n", [400]),
    (HEAD + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n" + b'{"messages":1', [100, 400]),
    (b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", [405]),
    (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", [403]),
    (b"GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", [404]),
    (b"GET /v1/models HTTP/1.0\r\n\r\n", [200]),
    (b"GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.0\r\n\r\n", [404]),
    (b"GET /%ff%fe HTTP/1.0\r\n\r\n", [404]),
    (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", [404]),
    (b"HEAD /health HTTP/1.0\r\n\r\n", [200]),
    (GOOD + GOOD + CLOSE, [200, 200, 200]),
    (GOOD + b"garbage\r\n\r\n", [200, 400]),
    (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n\r\n",
        [200],
    ),
]


async def test_single_exchanges(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = await start()
    for data, expected in EXCHANGES:
        answer = await server.raw(data)
        assert statuses(answer) == expected, (data[:200], answer[:300])
        assert answer.lower().count(b"\nx-request-id: req_") == len([code for code in expected if code >= 200])
        if expected[-1] >= 400:
            assert b'"error"' in answer
    assert (await server.chat()).status_code == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_connection_is_kept_and_streams_are_chunked(start: Start) -> None:
    server = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = BODY.replace(b"{", b'{"stream":true,', 1)
    for _ in range(2):
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and b"\r\ntransfer-encoding: chunked" in head.lower()
        assert b"connection: close" not in head.lower()
        events = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"data: [DONE]\n\n" in events
    writer.write(GOOD)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
    assert (await reader.readexactly(length)).startswith(b"{")
    writer.close()


async def test_split_everywhere(start: Start) -> None:
    server = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for byte in CLOSE:
        writer.write(bytes([byte]))
        await writer.drain()
    assert statuses(await reader.read()) == [200]
    writer.close()


async def test_expect_continue(start: Start) -> None:
    server = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HEAD + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    assert (await reader.readline()).startswith(b"HTTP/1.1 100")
    writer.write(BODY)
    assert statuses(await reader.read()) == [200]
    writer.close()


async def test_connection_is_kept(start: Start) -> None:
    server = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(3):
        writer.write(GOOD)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = int(re.search(rb"content-length: (\d+)", head).group(1))  # type: ignore[union-attr]  # always there
        await reader.readexactly(length)
    writer.close()


async def test_slow_header_and_slow_body(start: Start) -> None:
    server = await start(read_timeout=0.2)
    assert await server.raw(b"") == b""
    assert await server.raw(b"GET / HT") == b""
    assert statuses(await server.raw(HEAD + b"Content-Length: 100\r\n\r\n{")) == [408]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(GOOD)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GET / HT")
    async with asyncio.timeout(60):
        await reader.read()
    writer.close()
    assert (await server.chat()).status_code == 200


async def test_half_closed_and_cut_connections(start: Start) -> None:
    server = await start()
    for cut in range(0, len(GOOD), 7):
        assert all(code < 500 for code in statuses(await server.raw(GOOD[:cut], half_close=True)))
    assert (await server.chat()).status_code == 200
    assert server.app.service.admission.free


async def test_too_many_connections(start: Start) -> None:
    server = await start(max_connections=3)
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    for reader, writer in opened:
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert b"Too many connections" in await reader.read()
    for _, other in [*opened, (reader, writer)]:
        other.close()
    while server.server.server_state.connections:
        await asyncio.sleep(0.002)
    assert (await server.chat()).status_code == 200


async def attack(server: Running, chance: random.Random) -> list[int]:
    """One malformed exchange: damaged, split, pipelined, oversized, stalled, half-closed or cut."""
    data = bytearray(chance.choice([GOOD, CLOSE, GOOD + GOOD, HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":']))
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(1, 20)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 20))
            case 3:
                data[at:at] = data[: chance.randrange(len(data))]
            case 4 if chance.random() < 0.2:
                data[at:at] = b"\r\nX: " + b"a" * 70_000
        if not data:
            break
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for _ in range(chance.randrange(1, 4)):
            middle = chance.randrange(len(data) + 1)
            writer.write(bytes(data[:middle]))
            del data[:middle]
            await asyncio.sleep(0)
        stalled = chance.random() < 0.1
        if stalled or chance.random() < 0.6:
            if not stalled:
                writer.write_eof()
            async with asyncio.timeout(60):
                return statuses(await reader.read())
        return []
    except OSError:
        return []
    finally:
        if chance.random() < 0.5:
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def handles() -> int:
    """Open file handles of this process."""
    return len(os.listdir("/dev/fd" if sys.platform == "darwin" else "/proc/self/fd"))


async def _storm(server: Running, count: int, log: pytest.LogCaptureFixture) -> None:
    chance = random.Random(7)
    before, opened = len(asyncio.all_tasks()), handles()
    found: list[int] = []
    for _ in range(count):
        found += await attack(server, chance)
    assert all(code < 500 for code in found)
    assert {200, 400, 408, 431} <= set(found) and len(found) > count // 6
    while server.server.server_state.connections or server.server.server_state.tasks:
        await asyncio.sleep(0.005)
    assert len(asyncio.all_tasks()) <= before and handles() <= opened
    assert server.app.service.admission.free and server.engine.active == 0
    assert (await server.chat()).status_code == 200
    assert [record for record in log.records if record.levelname == "ERROR"] == []


async def test_random_damage(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    await _storm(await start(ScriptedClient(), read_timeout=0.05, idle_timeout=1.0), 200, caplog)


@pytest.mark.slow
async def test_much_random_damage(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    await _storm(await start(ScriptedClient(), read_timeout=0.05, idle_timeout=1.0), 1000, caplog)
