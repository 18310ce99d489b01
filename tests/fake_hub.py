"""A hub server on this machine that speaks the protocol of Hugging Face's: listing, HEAD, redirect, ranges, errors."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Rule = Callable[["Handler", str], bool]


@dataclass
class FakeHub:
    """Repositories of files at one commit each. Files of `large` are served like LFS files, from another path."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    large: tuple[str, ...] = (".safetensors",)
    #: Asked before every answer; True means it answered.
    rule: Rule = lambda handler, path: False
    #: Names to list though nothing is there.
    listed: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, repo: str, files: dict[str, bytes]) -> str:
        """Publish files; returns the commit."""
        content = repr(sorted(files.items())).encode()
        self.files[repo] = files
        self.commits[repo] = hashlib.sha1(content).hexdigest()
        return self.commits[repo]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, *, body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if self.hub.rule(self, path):
            return
        if path.startswith("/api/models/"):
            self.listing(path.removeprefix("/api/models/"))
        elif path.startswith("/cdn/"):
            repo, name = path.removeprefix("/cdn/").split("@", 1)
            self.content(self.hub.files[repo][name], {}, body)
        elif "/resolve/" in path:
            self.resolve(path, body)
        else:
            self.reply(404, b"")

    def listing(self, rest: str) -> None:
        repo, _, revision = rest.partition("/revision/")
        if repo not in self.hub.files:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        if revision not in ("main", self.hub.commits[repo]):
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings: list[dict[str, Any]] = list(self.hub.listed)
        for name, data in self.hub.files[repo].items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
            if name.endswith(self.hub.large):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        self.reply(
            200,
            json.dumps({"id": repo, "modelId": repo, "sha": self.hub.commits[repo], "siblings": siblings}).encode(),
            {"Content-Type": "application/json"},
        )

    def resolve(self, path: str, body: bool) -> None:
        repo, _, rest = path.removeprefix("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        data = self.hub.files.get(repo, {}).get(name)
        if data is None or revision not in ("main", self.hub.commits.get(repo)):
            self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": self.hub.commits[repo]}
        if name.endswith(self.hub.large):
            headers |= {
                "X-Linked-Size": str(len(data)),
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                # Another host, as the hub's own content servers are.
                "Location": f"{self.hub.url.replace('127.0.0.1', 'localhost')}/cdn/{repo}@{name}",
            }
            self.reply(302, b"", headers)
            return
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.content(data, {**headers, "ETag": f'"{blob}"'}, body)

    def content(self, data: bytes, headers: dict[str, str], body: bool) -> None:
        wanted = self.headers.get("Range", "")
        code, start = 200, 0
        if wanted.startswith("bytes="):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            code = 206
            headers = {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        self.reply(code, data[start:], {**headers, "Accept-Ranges": "bytes"}, body)

    def reply(self, code: int, data: bytes, headers: dict[str, str] | None = None, body: bool = True) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A hub at ``hub.url`` while the block runs."""
    hub = FakeHub()
    own = type("OwnHandler", (Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), own)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
