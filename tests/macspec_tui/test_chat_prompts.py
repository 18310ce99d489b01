"""What the model is told each turn: mlx-lm's rendering of the message list, written here by hand, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import macspec_models  # noqa: F401  # the fast BLAS comes before MLX

# isort: split
from mlx_lm.utils import load_tokenizer

from macspec.engine.prompt import prompt_tokens
from macspec.request import GenerationRequest, Started
from macspec.worker.process_client import ProcessClient
from macspec.worker.protocol import EngineOptions
from macspec.worker.scripted import Reply
from macspec_tui.app import ChatApp
from macspec_tui.settings import ChatSettings
from macspec_tui.store import Session, SessionStore

pytestmark = pytest.mark.model

#: ChatML as Qwen3 has it: earlier thinking is dropped, thinking off opens an empty section.
DROPS_THINKING = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content and loop.last %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
{%- endif %}
{{- message.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""
#: One that asks for all thinking back.
KEEPS_THINKING = DROPS_THINKING.replace(" and loop.last", "")

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


def _said(role: str, content: str, thinking: str = "") -> dict[str, str]:
    return {"role": role, "content": content} | ({"reasoning_content": thinking} if thinking else {})


async def _conversation(open_chat: Any) -> list[GenerationRequest]:
    """Four turns with all that bends a conversation: thinking, a stop, a retry, an edit, an undo."""
    gate = asyncio.Event()
    script = [
        Reply(text="Hi there.", thinking="They greet me."),
        Reply(text="one two three four five six", gates={1: gate}),
        Reply(text="four."),
        Reply(text="four, five."),
        Reply(text="Paris.", thinking="A capital."),
        Reply(text="Lyon."),
    ]
    async with open_chat(script) as chat:
        await chat.enter("/system Be brief.")
        await chat.say("Hello")
        await chat.enter("count")
        await chat.until(lambda: chat.client.rounds_run.get(chat.client.requests[-1].id))
        await chat.press("escape")
        gate.set()
        await chat.idle()
        await chat.say("go on")
        await chat.enter("/retry")
        await chat.idle()
        await chat.enter("/think off")
        await chat.enter("/edit")
        await chat.say("Capital of France?")
        await chat.enter("/undo")
        chat.prompt.clear_all()
        await chat.say("日本語 \U0001f642")
        return chat.client.requests


#: What each of those turns must tell the model, thinking included where there was some.
EXPECTED = (
    [_said(SYSTEM, "Be brief."), _said(USER, "Hello")],
    [
        _said(SYSTEM, "Be brief."),
        _said(USER, "Hello"),
        _said(ASSISTANT, "Hi there.", "They greet me."),
        _said(USER, "count"),
    ],
    [
        _said(SYSTEM, "Be brief."),
        _said(USER, "Hello"),
        _said(ASSISTANT, "Hi there.", "They greet me."),
        _said(USER, "count"),
        _said(ASSISTANT, "one two three"),
        _said(USER, "go on"),
    ],
)
TURNS = (*EXPECTED, EXPECTED[2], [*EXPECTED[2][:-1], _said(USER, "Capital of France?")])
LAST = [*EXPECTED[2][:-1], _said(USER, "日本語 \U0001f642")]


@pytest.mark.parametrize(
    ("template", "fed_back"),
    [(None, False), (DROPS_THINKING, False), (KEEPS_THINKING, True)],
    ids=["smollm2", "drops thinking", "keeps thinking"],
)
async def test_prompts_are_what_mlx_lm_renders(
    open_chat, smollm_folder: Path, template: str | None, fed_back: bool
) -> None:
    tokenizer = load_tokenizer(smollm_folder)
    if template is not None:
        tokenizer.chat_template = template
    requests = await _conversation(open_chat)
    assert len(requests) == 6
    for request, messages in zip(requests, (*TURNS, LAST), strict=True):
        if not fed_back:
            messages = [{"role": message["role"], "content": message["content"]} for message in messages]
        options = {} if request.thinking is None else {"enable_thinking": request.thinking}
        reference = tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)
        assert prompt_tokens(request, tokenizer, len(tokenizer.vocab)) == reference
        text = tokenizer.decode(reference)
        assert text.count("Be brief.") == 1 and ("They greet me." in text) == (fed_back and len(messages) > 2)


async def _talk(client: ProcessClient, settings: ChatSettings, folder: Path, *said: str) -> Session:
    """Say these things to the real model, one after the other."""
    store = SessionStore(folder / "sessions")
    app = ChatApp(client, store, store.new("Answer in a few words."), settings, theme="dark")
    async with app.run_test(size=(80, 24)) as pilot:

        async def idle() -> None:
            while app.chat.turn is not None or app.chat.engine_loading or app.chat.waiting:
                await asyncio.sleep(0.02)
            await pilot.pause()

        await idle()
        for text in said:
            app.chat.prompt.clear_all()
            await app.chat.submit(text)
            await idle()
        await client.close()
    app.chat.session.close()
    return app.chat.session


@pytest.mark.slow
@pytest.mark.parametrize("depth", ["auto", "3", "0"])
async def test_the_model_ends_its_turn_and_does_not_talk_to_itself(tmp_path: Path, depth: str) -> None:
    settings = ChatSettings().set("max_tokens", "120").set("depth", depth)
    session = await _talk(ProcessClient(EngineOptions()), settings, tmp_path, "Say hello.", "What is 2 + 2?")
    answers = session.conversation.path()[1::2]
    assert [message.reason for message in answers] == ["stop", "stop"]
    for message in answers:
        assert message.text and "<|" not in message.text and "\nuser\n" not in message.text


@pytest.mark.slow
@pytest.mark.parametrize("depth", ["auto", "0"])
async def test_the_prefix_cache_is_hit_every_turn(open_chat, tmp_path: Path, depth: str) -> None:
    began: list[Started] = []

    class Watched(ProcessClient):
        async def submit(self, request: GenerationRequest) -> Any:
            async for event in super().submit(request):
                if isinstance(event, Started):
                    began.append(event)
                yield event

    settings = ChatSettings().set("max_tokens", "12").set("depth", depth)
    said = ("What is rain?", "And snow?", "/retry", "Tell me a story.", "/undo", "Bye.")
    await _talk(Watched(EngineOptions()), settings, tmp_path, *said)
    assert len(began) == 5
    # Turns that follow one another need only the new message and what frames it; a retry needs its last token.
    longest = max(event.prompt_tokens - event.cached_tokens for event in began[1:])
    assert all(event.cached_tokens > 0 for event in began[1:])
    assert longest <= 40, began
    assert began[1].cached_tokens >= began[0].prompt_tokens - 8
