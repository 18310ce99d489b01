"""A turn of every client against the embedded model and its drafter: text, stream, tool, structure, a refusal.

Clients whose dependencies clash with ours, or with each other's, run in Pythons of their own, which ``make
test-clients`` sets up; what is not installed is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

pytestmark = [pytest.mark.model, pytest.mark.slow]

ASK: Any = [{"role": "user", "content": "Say hello."}]
LIMIT = 12
CITIES = ("Bern", "Rome")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": list(CITIES)}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}

Foreign = Callable[[str, str], dict[str, Any]]


class City(BaseModel):
    """A structured answer."""

    city: Literal["Bern", "Rome"]


def test_openai(url: str, model: str) -> None:
    import openai

    with openai.OpenAI(base_url=url, api_key="x", timeout=300) as client:
        whole = client.chat.completions.create(model=model, messages=ASK, max_tokens=LIMIT)
        text = ""
        for chunk in client.chat.completions.create(model=model, messages=ASK, max_tokens=LIMIT, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text and text == whole.choices[0].message.content
        response = client.responses.create(model=model, input="Say hello.", max_output_tokens=LIMIT)
        assert response.output_text == text
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=ASK, temperature=5)
        assert caught.value.param == "temperature"


def test_openai_structured(url: str, model: str) -> None:
    import openai

    with openai.OpenAI(base_url=url, api_key="x", timeout=300) as client:
        ask: Any = [{"role": "user", "content": "Name one city. Answer in JSON."}]
        answer = client.chat.completions.parse(model=model, messages=ask, response_format=City, max_tokens=60)
        assert answer.choices[0].message.parsed is not None
        response = client.responses.parse(model=model, input=ask, text_format=City, max_output_tokens=60)
        assert response.output_parsed == answer.choices[0].message.parsed


def test_openai_tools(url: str, model: str) -> None:
    import openai

    # The model's template knows no tools: a call can be forced, which the answer is constrained to, but not left to it.
    with openai.OpenAI(base_url=url, api_key="x", timeout=300) as client:
        fields: Any = {"model": model, "messages": ASK, "tools": [TOOL], "max_tokens": 40}
        answer = client.chat.completions.create(**fields, tool_choice=NAMED)
        calls: Any = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls" and calls[0].function.name == "weather"
        assert json.loads(calls[0].function.arguments)["city"] in CITIES
        with client.chat.completions.stream(**fields, tool_choice="required") as stream:
            final = stream.get_final_completion()
        streamed: Any = final.choices[0].message.tool_calls
        assert streamed[0].function.arguments == calls[0].function.arguments
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**fields)
        assert caught.value.param == "tools"


async def test_openai_async(url: str, model: str) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="x", timeout=300) as client:
        whole = await client.chat.completions.create(model=model, messages=ASK, max_tokens=LIMIT)
        stream = await client.chat.completions.create(
            model=model, messages=ASK, max_tokens=LIMIT, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens <= LIMIT
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content


def test_anthropic(url: str, model: str) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="x", timeout=300) as client:
        message = client.messages.create(model=model, messages=ASK, max_tokens=LIMIT)
        assert message.content[0].type == "text" and message.content[0].text
        count = client.messages.count_tokens(model=model, messages=ASK)
        assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        with client.messages.stream(model=model, messages=ASK, max_tokens=LIMIT) as stream:
            assert "".join(stream.text_stream) == message.content[0].text
        tool: Any = {"name": "weather", "input_schema": SCHEMA}
        choice: Any = {"type": "tool", "name": "weather"}
        called = client.messages.create(model=model, messages=ASK, max_tokens=40, tools=[tool], tool_choice=choice)
        assert called.stop_reason == "tool_use" and called.content[0].type == "tool_use"
        assert called.content[0].input["city"] in CITIES
        with pytest.raises(anthropic.BadRequestError, match="thinking"):
            budget: Any = {"type": "enabled", "budget_tokens": 1024}
            client.messages.create(model=model, messages=ASK, max_tokens=2000, thinking=budget)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(url: str) -> None:
    body = json.dumps({"messages": ASK, "max_tokens": LIMIT, "stream": True})
    words = ["curl", "-sSN", f"{url}/chat/completions", "-H", "content-type: application/json", "-d", body]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.startswith("data: {") or done.stdout.startswith(": ")
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_langchain(foreign: Foreign) -> None:
    found = foreign("langchain_openai", "langchain_client.py")
    assert found["whole"] and found["streamed"] == found["whole"]
    assert found["tool"]["city"] in CITIES and found["structured"] in CITIES
    assert found["error"] == "temperature"


def test_litellm(foreign: Foreign) -> None:
    found = foreign("litellm", "litellm_client.py")
    assert found["whole"] and found["streamed"] == found["whole"] and 0 < found["usage"] <= 24
    assert found["tool"]["city"] in CITIES and found["error"]


def test_aider(foreign: Foreign) -> None:
    found = foreign("aider", "aider_client.py")
    assert found["whole"] and found["streamed"] == found["whole"]


def test_llm(url: str, model: str, tmp_path: Path, python_with: Callable[[str], str]) -> None:
    entry = f"- model_id: local\n  model_name: {model}\n  api_base: {url}\n  supports_schema: true\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    python = python_with("llm")

    def llm(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        words = (python, "-m", "llm", "-m", "local", *words, "Say hello.")
        return subprocess.run(words, capture_output=True, text=True, timeout=280, check=False, env=environment)

    streamed, whole = llm("-o", "max_tokens", str(LIMIT)), llm("-o", "max_tokens", str(LIMIT), "--no-stream")
    assert streamed.returncode == 0 and streamed.stdout.strip(), streamed.stderr
    assert whole.stdout == streamed.stdout
    shaped = llm("--schema", json.dumps(SCHEMA), "-o", "max_tokens", "40")
    assert shaped.returncode == 0 and json.loads(shaped.stdout)["city"] in CITIES, shaped.stderr
    refused = llm("-o", "temperature", "1.9", "-o", "presence_penalty", "-2", "-o", "logit_bias", '{"999999": 1}')
    assert refused.returncode == 1 and "999999" in refused.stderr
