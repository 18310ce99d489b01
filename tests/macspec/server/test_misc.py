"""Models, health, metrics, tokenize and the edges of the route table."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import openai
import pytest

from macspec.worker.scripted import Reply, ScriptedClient

if TYPE_CHECKING:
    from tests.macspec.server.conftest import Start

MODEL = "scripted/model"


async def test_models(start: Start) -> None:
    server = await start(aliases=("gpt-4o",))
    found = [model async for model in server.openai.models.list()]
    assert [model.id for model in found] == [MODEL, "gpt-4o"]
    one = await server.openai.models.retrieve(MODEL)
    extra = one.model_extra or {}
    assert extra["max_model_len"] == extra["context_length"] == extra["max_context_length"] == 4096
    assert extra["loaded"] is True and one.object == "model"
    assert (await server.http.get("/models")).json() == (await server.http.get("/v1/models")).json()


@pytest.mark.parametrize(
    "name", ["default_model", "../../etc", "nope/nope", "/etc/passwd", "scripted", "SCRIPTED/MODEL"]
)
async def test_other_names_are_not_served(start: Start, name: str) -> None:
    server = await start()
    with pytest.raises(openai.NotFoundError) as caught:
        await server.openai.chat.completions.create(model=name, messages=[{"role": "user", "content": "x"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        await server.openai.models.retrieve(name.lstrip("/."))
    assert server.engine.loads and len(server.engine.loads) == 1 and server.engine.requests == []


async def test_alias_is_served_under_its_name(start: Start) -> None:
    server = await start(aliases=("gpt-4o",))
    answer = (await server.chat(model="gpt-4o")).json()
    assert answer["model"] == "gpt-4o"


async def test_unprefixed_routes(start: Start) -> None:
    server = await start()
    message = [{"role": "user", "content": "x"}]
    assert (await server.post("/chat/completions", {"messages": message})).status_code == 200
    assert (await server.post("/completions", {"prompt": "x"})).status_code == 200
    assert (await server.post("/responses", {"input": "x"})).status_code == 200
    assert (await server.post("/messages", {"messages": message, "max_tokens": 5})).status_code == 200


async def test_unknown_routes_and_methods(start: Start) -> None:
    server = await start()
    missing = await server.http.get("/v2/nothing")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "unknown_url"
    method = await server.http.get("/v1/chat/completions")
    assert method.status_code == 405 and method.json()["error"]["code"] == "method_not_allowed"
    embeddings = await server.post("/v1/embeddings", {"input": "x"})
    assert embeddings.status_code == 404 and "no embedding model" in embeddings.json()["error"]["message"]
    assert all("x-request-id" in response.headers for response in (missing, method, embeddings))


async def test_health_follows_the_engine(start: Start) -> None:
    gate = asyncio.Event()
    engine = ScriptedClient(load_gate=gate)
    loading = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    server = await start(engine, load=False, loading_timeout=0.0)
    health = await server.http.get("/health")
    assert health.status_code == 503 and health.json()["status"] == "loading"
    chat = await server.chat()
    assert chat.status_code == 503 and chat.json()["error"]["code"] == "loading" and chat.headers["retry-after"] == "2"
    gate.set()
    await loading
    health = await server.http.get("/health")
    assert health.status_code == 200 and health.json() == {"status": "ok", "running": 0, "waiting": 0}
    engine.stuck_for = 100.0
    health = await server.http.get("/health")
    assert health.status_code == 503 and health.json()["status"] == "stuck"


async def test_requests_wait_for_a_loading_model(start: Start) -> None:
    gate = asyncio.Event()
    engine = ScriptedClient(load_gate=gate)
    loading = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    server = await start(engine, load=False)
    chat = asyncio.create_task(server.chat())
    await asyncio.sleep(0.05)
    gate.set()
    await loading
    assert (await chat).status_code == 200


async def test_metrics(start: Start) -> None:
    server = await start(ScriptedClient(Reply("one two three four")))
    await server.chat()
    await server.http.get("/nothing%1b[31m")
    text = (await server.http.get("/metrics")).text
    assert "macspec_rounds_total 2\n" in text and "macspec_generation_tokens_total 4\n" in text
    assert 'macspec_http_responses_total{route="/v1/chat/completions",status="200"} 1\n' in text
    assert 'macspec_http_responses_total{route="other",status="404"} 1\n' in text
    assert 'macspec_time_to_first_token_seconds_bucket{le="+Inf"} 1\n' in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0


async def test_tokenize(start: Start) -> None:
    server = await start()
    answer = (await server.post("/tokenize", {"prompt": "a b c"})).json()
    assert answer["count"] == 3 == len(answer["tokens"]) and answer["max_model_len"] == 4096
    message = {"messages": [{"role": "user", "content": "a b"}]}
    assert (await server.post("/v1/tokenize", message)).json()["count"] == 2
    assert (await server.post("/tokenize", {"content": ""})).json()["tokens"] == []
    both = await server.post("/tokenize", {"prompt": "a", **message})
    assert both.status_code == 400


async def test_log_has_no_prompt_and_no_control_characters(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = await start(ScriptedClient(Reply("top secret answer")))
    with caplog.at_level("DEBUG"):
        await server.chat(messages=[{"role": "user", "content": "top secret prompt"}])
        await server.raw(b"GET /a%1b[31m%0aFAKE HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("macspec")]
    assert any("/v1/chat/completions 200" in line for line in ours)
    assert not any("secret" in line for line in ours)
    assert not any("\x1b" in line or "\n" in line for line in ours)
    assert any("/a\\x1b[31m\\nFAKE 404" in line for line in ours)
