"""One turn of every client, against the embedded model. Those that are not installed are skipped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel

pytestmark = [pytest.mark.model, pytest.mark.slow]

ASK: Any = [{"role": "user", "content": "Say hello."}]
LIMIT = 12


class City(BaseModel):
    """A structured answer."""

    name: str


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
        assert answer.choices[0].message.parsed is not None or answer.choices[0].finish_reason == "length"


def test_openai_forced_tool(url: str, model: str) -> None:
    import openai

    schema = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}, "required": ["city"]}
    schema["additionalProperties"] = False
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    with openai.OpenAI(base_url=url, api_key="x", timeout=300) as client:
        answer = client.chat.completions.create(
            model=model, messages=ASK, tools=[tool], tool_choice=choice, max_tokens=40
        )
    calls: Any = answer.choices[0].message.tool_calls
    assert json.loads(calls[0].function.arguments)["city"] in ("Bern", "Rome")


async def test_openai_async(url: str, model: str) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="x", timeout=300) as client:
        stream = await client.chat.completions.create(
            model=model, messages=ASK, max_tokens=LIMIT, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens <= LIMIT


def test_anthropic(url: str, model: str) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="x", timeout=300) as client:
        message = client.messages.create(model=model, messages=ASK, max_tokens=LIMIT)
        assert message.content[0].type == "text" and message.content[0].text
        count = client.messages.count_tokens(model=model, messages=ASK)
        assert count.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        with client.messages.stream(model=model, messages=ASK, max_tokens=LIMIT) as stream:
            assert "".join(stream.text_stream) == message.content[0].text


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(url: str) -> None:
    body = json.dumps({"messages": ASK, "max_tokens": LIMIT, "stream": True})
    words = ["curl", "-sSN", f"{url}/chat/completions", "-H", "content-type: application/json", "-d", body]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.startswith("data: {") or done.stdout.startswith(": ")
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_langchain(url: str, model: str) -> None:
    module = pytest.importorskip("langchain_openai")
    chat = module.ChatOpenAI(base_url=url, api_key="x", model=model, max_tokens=LIMIT, timeout=300)
    whole = chat.invoke("Say hello.").content
    assert whole and "".join(chunk.content for chunk in chat.stream("Say hello.")) == whole


@pytest.mark.filterwarnings("ignore")
def test_litellm(url: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its price list would come from the network.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    # aider and many agents call models through this library and nothing else.
    module = pytest.importorskip("litellm")
    fields = {"model": f"openai/{model}", "api_base": url, "api_key": "x", "messages": ASK, "max_tokens": LIMIT}
    whole = module.completion(**fields)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in module.completion(**fields, stream=True))
    assert text and text == whole.choices[0].message.content


def test_llm(url: str, model: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llm")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    entry = f"- model_id: local\n  model_name: {model}\n  api_base: {url}\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    words = [sys.executable, "-m", "llm", "-m", "local", "-o", "max_tokens", str(LIMIT), "Say hello."]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
