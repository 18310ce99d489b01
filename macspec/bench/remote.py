"""An arm behind a URL: any OpenAI-compatible server, asked for the same prompts over streaming chat completions."""

from __future__ import annotations

import http.client
import ipaddress
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from macspec.bench.samples import Prompt, Sample, Settings
from macspec.errors import MacspecError, RequestError

#: Seconds without a byte after which a server counts as hanging.
SILENCE_S = 60.0
#: An answer that takes longer than this is given up, however busily the server streams.
ANSWER_S = 600.0
MAX_LINE = 1 << 20


class RemoteError(MacspecError):
    """The server behind a URL did not answer as an OpenAI-compatible server does."""

    code = "remote_failed"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask and for which model."""

    base: str
    model: str

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """``http://127.0.0.1:8080/v1=model``; ``/v1`` and the model may be left out."""
        address, _, model = text.partition("=")
        parts = urllib.parse.urlsplit(address)
        try:
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid or parts.query or parts.fragment or any(ord(c) <= 32 for c in address):
            raise RequestError(f"url is {text!r}; write http://host:port/v1 or http://host:port/v1=model.", param="url")
        path = parts.path.rstrip("/")
        return cls(f"{parts.scheme}://{parts.netloc}{path or '/v1'}", model)


class RemoteArm:
    """An OpenAI-compatible server. Token counts come from its ``usage``, else one token per streamed piece."""

    def __init__(
        self, endpoint: Endpoint, *, api_key: str | None = None, silence_s: float = SILENCE_S, name: str | None = None
    ) -> None:
        self.endpoint, self.api_key, self.silence_s = endpoint, api_key, silence_s
        host = urllib.parse.urlsplit(endpoint.base)
        self.name = name or f"{host.hostname}:{host.port}" if host.port else (name or str(host.hostname))
        # A proxy must not stand between this process and a server on this machine.
        handlers = [urllib.request.ProxyHandler({})] if _is_local(host.hostname or "") else []
        self._opener = urllib.request.build_opener(*handlers)
        self._model = endpoint.model

    def run(self, prompt: Prompt, settings: Settings) -> Sample:
        """Answer a prompt; raises `RemoteError` with a sentence when the server cannot."""
        body: dict[str, Any] = {
            "model": self._model or self._first_model(),
            "messages": [{"role": "user", "content": prompt.text}],
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": settings.thinking}
        pieces: list[str] = []
        usage: dict[str, Any] = {}
        reason = "stop"
        first_commit = ended = 0.0
        begun = time.perf_counter()
        for chunk in self._stream("/chat/completions", body, begun):
            if isinstance(chunk.get("usage"), dict):
                usage = chunk["usage"]
            text, finish = _piece(chunk)
            reason = finish or reason
            if text:
                ended = time.perf_counter() - begun
                first_commit = first_commit or ended
                pieces.append(text)
        if not pieces:
            raise RemoteError(f"{self.endpoint.base} answered {prompt.id} with no text.")
        counted = usage.get("completion_tokens")
        tokens = counted if isinstance(counted, int) and counted > 0 else len(pieces)
        whole = "".join(pieces)
        prompt_tokens = usage.get("prompt_tokens")
        return Sample(
            arm=self.name,
            prompt=prompt.id,
            category=prompt.category,
            prompt_tokens=prompt_tokens if isinstance(prompt_tokens, int) else 0,
            generation_tokens=tokens,
            # A speculating server sends several tokens at once; their share of the text is the best estimate.
            first_round_tokens=max(1, round(tokens * len(pieces[0]) / len(whole))),
            first_commit_s=first_commit,
            end_s=ended,
            text=whole,
            finish_reason=reason,
        )

    def gap(self, prompt: Prompt, prefix: tuple[int, ...], first: int, second: int) -> float | None:
        """Unknown: the server shows only text."""
        return None

    def close(self) -> None:
        """Nothing stays open between requests."""

    def _first_model(self) -> str:
        with self._open("/models", None) as response:
            raw = response.read(MAX_LINE)
        try:
            self._model = str(json.loads(raw)["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise RemoteError(
                f"{self.endpoint.base}/models does not list a model as OpenAI's API does; name one with URL=model."
            ) from error
        return self._model

    def _stream(self, path: str, body: dict[str, Any], begun: float) -> Iterator[dict[str, Any]]:
        found = False
        with self._open(path, body) as response:
            for line in self._lines(response, begun):
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                try:
                    chunk = json.loads(data)
                except ValueError as error:
                    raise RemoteError(
                        f"{self.endpoint.base} streamed something that is not JSON: {data[:60]!r}."
                    ) from error
                if not isinstance(chunk, dict):
                    raise RemoteError(f"{self.endpoint.base} streamed {data[:60]!r} instead of an object.")
                if chunk.get("error"):
                    raise RemoteError(f"{self.endpoint.base} reported an error: {_short(chunk['error'])}")
                found = True
                yield chunk
        if not found:
            raise RemoteError(
                f"{self.endpoint.base} did not stream server-sent events; is it an OpenAI-compatible server?"
            )

    def _lines(self, response: Any, begun: float) -> Iterator[bytes]:
        while True:
            if time.perf_counter() - begun > ANSWER_S:
                raise RemoteError(f"{self.endpoint.base} had not finished an answer after {ANSWER_S:.0f} s.")
            try:
                line = response.readline(MAX_LINE)
            except TimeoutError as error:
                raise self._silent() from error
            except (OSError, http.client.HTTPException) as error:
                raise RemoteError(f"{self.endpoint.base} broke off in the middle of an answer: {error}.") from error
            if not line:
                return
            if len(line) >= MAX_LINE:
                raise RemoteError(f"{self.endpoint.base} sent a line of more than {MAX_LINE >> 20} MB.")
            yield line

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream" if body else "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.endpoint.base + path, data=data, headers=headers)
        try:
            return self._opener.open(request, timeout=self.silence_s)
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode(errors="replace")
            error.close()
            raise RemoteError(f"{self.endpoint.base}{path} answered {error.code}: {_short(detail)}") from error
        except TimeoutError as error:
            raise self._silent() from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._silent() from error
            raise RemoteError(
                f"{self.endpoint.base} cannot be reached ({error.reason}); is the server running?"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"{self.endpoint.base} does not speak HTTP as expected: {error}.") from error

    def _silent(self) -> RemoteError:
        return RemoteError(f"{self.endpoint.base} sent nothing for {self.silence_s:.0f} s; it hangs or is overloaded.")


def _piece(chunk: dict[str, Any]) -> tuple[str, str | None]:
    """New text of a chunk, thinking included, and its finish reason."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return "", None
    delta = choices[0].get("delta")
    text = ""
    if isinstance(delta, dict):
        for key in ("reasoning_content", "reasoning", "content"):
            if isinstance(delta.get(key), str):
                # Half of a surrogate pair is valid JSON and no text.
                text += delta[key].encode(errors="replace").decode()
    finish = choices[0].get("finish_reason")
    return text, finish if isinstance(finish, str) else None


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    shown = "".join(c for c in text if c.isprintable())
    return shown[:200] + ("…" if len(shown) > 200 else "")
