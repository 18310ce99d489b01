from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from macspec.bench.remote import Endpoint, RemoteArm, RemoteError
from macspec.bench.samples import Prompt, Settings
from macspec.errors import RequestError

PROMPT = Prompt("chat-1", "chat", "Hello?")
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def serving(
    answer: Answer, models: bytes = b'{"data": [{"id": "first"}]}'
) -> Iterator[tuple[str, list[dict[str, object]]]]:
    seen: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(models)

        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def stream(*chunks: object, pause: float = 0.0) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for chunk in chunks:
            data = chunk if isinstance(chunk, str) else json.dumps(chunk)
            handler.wfile.write(f"data: {data}\n\n".encode())
            handler.wfile.flush()
            time.sleep(pause)

    return answer


def piece(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}


def ask(url: str, silence: float = 60.0) -> object:
    return RemoteArm(Endpoint.parse(url), silence_s=silence).run(PROMPT, Settings(max_tokens=40, thinking=False))


def test_a_stream_becomes_a_sample() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 40}}
    chunks = [piece("abcd"), *[piece("ef") for _ in range(17)], piece("gh", "length"), usage, "[DONE]"]
    with serving(stream(*chunks, pause=0.001)) as (url, seen):
        arm = RemoteArm(Endpoint.parse(f"{url}/v1=mine"))
        sample = arm.run(PROMPT, Settings(max_tokens=40, seed=3))
    assert sample.text == "abcd" + "ef" * 17 + "gh"
    assert (sample.prompt_tokens, sample.generation_tokens, sample.finish_reason) == (9, 40, "length")
    # The first piece is a tenth of the text.
    assert sample.first_round_tokens == 4
    assert 0 < sample.first_commit_s < sample.end_s
    assert sample.decode_rate is not None
    assert seen[0]["model"] == "mine" and seen[0]["seed"] == 3 and seen[0]["temperature"] == 0.0
    assert arm.gap(PROMPT, (), 1, 2) is None


def test_pieces_count_where_there_is_no_usage_and_the_first_model_is_asked_for() -> None:
    with serving(stream(*[piece("a") for _ in range(12)], "[DONE]")) as (url, seen):
        sample = RemoteArm(Endpoint.parse(url)).run(PROMPT, Settings())
    assert sample.generation_tokens == 12
    assert seen[0]["model"] == "first"


def _html(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"<html><body>Hello</body></html>")


def _refused(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(401)
    handler.end_headers()
    handler.wfile.write(b'{"error": "no\x1b[31m key"}')


def _hangs(handler: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(1.2)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (_html, "did not stream server-sent events"),
        (_refused, "answered 401"),
        (_hangs, "sent nothing for"),
        (stream("{not json"), "is not JSON"),
        (stream([1, 2]), "instead of an object"),
        (stream({"error": {"message": "overloaded"}}), "reported an error: .*overloaded"),
        (stream(piece(""), "[DONE]"), "with no text"),
        (stream({"choices": "many"}, "[DONE]"), "with no text"),
    ],
    ids=["html", "401", "hangs", "not json", "list", "error", "empty", "odd choices"],
)
def test_rubbish_becomes_a_sentence(answer: Answer, sentence: str) -> None:
    with serving(answer) as (url, _), pytest.raises(RemoteError, match=sentence) as caught:
        ask(f"{url}/v1=m", silence=0.4 if answer is _hangs else 60.0)
    assert "\x1b" not in str(caught.value)


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(RemoteError, match="cannot be reached"):
        ask(f"http://127.0.0.1:{port}=m")


def test_a_server_that_lists_no_model() -> None:
    with serving(stream("[DONE]"), models=b"[]") as (url, _), pytest.raises(RemoteError, match="does not list a model"):
        ask(url)


@pytest.mark.parametrize(
    "text", ["", "localhost:80", "ftp://x", "http://", "http://a:99999", "http://a/?b", "http://a b"]
)
def test_bad_urls(text: str) -> None:
    with pytest.raises(RequestError, match="write http://host:port"):
        Endpoint.parse(text)


def test_urls() -> None:
    assert Endpoint.parse("http://127.0.0.1:8080") == Endpoint("http://127.0.0.1:8080/v1", "")
    assert Endpoint.parse("http://h:1/api/v1/=a=b") == Endpoint("http://h:1/api/v1", "a=b")
    assert RemoteArm(Endpoint.parse("http://h:1")).name == "h:1"
