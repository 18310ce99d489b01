"""Sending, answering, stopping, typing ahead, failing: what happens to a turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from macspec.errors import MacspecError, MemoryRefusedError, ModelLoadError, RequestError
from macspec.request import GenerationRequest
from macspec.worker.protocol import LoadProgress
from macspec.worker.scripted import DEFAULT_INFO, Reply, ScriptedClient
from macspec_tui.settings import ChatSettings
from macspec_tui.store import SessionStore
from macspec_tui.widgets.activity import Activity
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.code_block import CodeBlock, CopyLabel
from macspec_tui.widgets.prose import Prose
from macspec_tui.widgets.status_line import StatusLine
from macspec_tui.widgets.thinking import ThinkingBlock

ANSWER = "Look:\n\n```python\nx = 1\n```\n\n- a\n- b\n"


async def test_an_answer_is_shown_and_saved(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text=ANSWER)) as chat:
        await chat.say("show me")
        assert chat.texts == ["show me", ANSWER.strip("\n")]
        assert chat.screen.query(Prose) and chat.screen.query_one(CodeBlock).code == "x = 1"
        saved = store.load(chat.screen.session.id).conversation.path()
        assert [message.text for message in saved] == chat.texts
        assert saved[1].model == "scripted/model" and saved[1].stats is not None


async def test_the_next_turn_sends_the_whole_conversation(open_chat) -> None:
    async with open_chat([Reply(text="1", thinking="hm"), Reply(text="2")]) as chat:
        await chat.enter("/system Be brief.")
        await chat.say("one")
        await chat.say("two")
        assert chat.client.requests[1].messages == (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "1", "reasoning_content": "hm"},
            {"role": "user", "content": "two"},
        )


async def test_a_streamed_answer_ends_as_a_stored_one_looks(open_chat) -> None:
    text = "A\n\n```py\na = 1\n\nb = 2\n```\nB **b**\n\n1. x\n2. y\n\n```\nlast"
    async with open_chat(Reply(text=text, per_round=1)) as chat:
        await chat.say("go")
        streamed = _shape(chat.screen.query_one(AnswerView))
        await chat.screen.show_session()
        await chat.settle()
        assert _shape(chat.screen.query_one(AnswerView)) == streamed


def _shape(view: AnswerView) -> list[tuple[str, str]]:
    return [
        ("code", child.code) if isinstance(child, CodeBlock) else ("prose", child.source.strip())
        for child in view.children
        if isinstance(child, (CodeBlock, Prose))
    ]


async def test_escape_stops_and_keeps_what_was_said(open_chat) -> None:
    gate = asyncio.Event()
    script = [Reply(text="one two three four five six", gates={1: gate}), Reply(text="Yes.")]
    async with open_chat(script) as chat:
        await chat.enter("count")
        await chat.until(lambda: chat.screen.live.rounds)
        await chat.press("escape")
        gate.set()
        await chat.idle()
        assert chat.texts == ["count", "one two three"]
        assert chat.screen.session.conversation.path()[1].reason == "cancelled"
        assert chat.client.rounds_run[chat.client.requests[0].id] == 1
        await chat.say("go on?")
        assert (chat.client.requests[1].messages or ())[1] == {"role": "assistant", "content": "one two three"}


async def test_stopping_before_the_first_word_gives_the_question_back(open_chat, store: SessionStore) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="late", gate=gate)) as chat:
        await chat.say("/save nothing yet")
        await chat.enter("too early")
        await chat.until(lambda: chat.client.active)
        await chat.press("escape")
        gate.set()
        await chat.idle()
        assert chat.texts == [] and chat.prompt.text == "too early"
        assert store.load(chat.screen.session.id).conversation.path() == []


async def test_ctrl_c_stops_and_again_leaves(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d e f", gates={1: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.rounds)
        await chat.press("ctrl+c")
        assert chat.screen.turn is not None and chat.screen.turn.stopping
        gate.set()
        await chat.idle()
        assert not chat.app._exit
        await chat.press("ctrl+c")
        assert chat.app._exit


async def test_ctrl_c_when_idle_asks_first(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("ctrl+c")
        assert not chat.app._exit
        chat.screen._interrupted -= 10
        await chat.press("ctrl+c")
        assert not chat.app._exit


async def test_ctrl_d_leaves_only_from_an_empty_prompt(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("a", "left", "ctrl+d")
        assert not chat.app._exit and chat.prompt.text == ""
        await chat.press("ctrl+d")
        assert chat.app._exit


async def test_leaving_during_an_answer_keeps_it(open_chat, store: SessionStore) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d e f", gates={1: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.rounds)
        asyncio.get_running_loop().call_later(0.1, gate.set)
        await chat.app.action_quit()
        saved = store.load(chat.screen.session.id).conversation.path()
        assert [message.text for message in saved] == ["go", "a b c"]


async def test_the_window_closing_during_an_answer_keeps_it(open_chat, store: SessionStore) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d e f", gates={1: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.rounds)
        chat.app.keep_unfinished()
        saved = store.load(chat.screen.session.id).conversation.path()
        assert saved[-1].text == "a b c"
        gate.set()
        await chat.settle()
    assert len(store.load(chat.screen.session.id).conversation.path()) == 2


async def test_the_window_closing_while_text_arrives_ends_quietly(open_chat, store: SessionStore) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d e f", gates={1: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.rounds)
        view = chat.screen.query_one(AnswerView)
        chat.app._ended_from_outside()
        gate.set()
        view.append("1. new\n2. text\n\n```python\nx = 1\n```\nmore", "answer")
        view.append("and thoughts", "thinking")
        await view.flush()
        identity = chat.screen.session.id
    assert chat.app.return_code == 1
    assert [message.text for message in store.load(identity).conversation.path()] == ["go", "a b c"]


async def test_messages_typed_ahead_are_sent_in_order(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat([Reply(text="first", gate=gate), Reply(text="second"), Reply(text="third")]) as chat:
        await chat.enter("one")
        await chat.enter("two")
        await chat.enter("three")
        assert "2 typed ahead" in chat.screen.query_one(Activity).text
        gate.set()
        await chat.idle()
        assert chat.texts == ["one", "first", "two", "second", "three", "third"]


async def test_stopping_gives_back_what_was_typed_ahead(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d e f", gates={1: gate})) as chat:
        await chat.enter("one")
        await chat.until(lambda: chat.screen.live.rounds)
        await chat.enter("two")
        await chat.press("escape")
        gate.set()
        await chat.idle()
        assert chat.prompt.text == "two" and len(chat.client.requests) == 1


async def test_a_slash_message_typed_ahead_stays_a_message(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat([Reply(text="first", gate=gate), Reply(text="second")]) as chat:
        await chat.enter("one")
        await chat.enter("//quit is a command?")
        gate.set()
        await chat.idle()
        assert chat.texts == ["one", "first", "/quit is a command?", "second"] and not chat.app._exit


async def test_a_failed_load_gives_back_what_was_typed_ahead(open_chat) -> None:
    gate = asyncio.Event()
    error = ModelLoadError("The weights are damaged; download them again.")
    client = ScriptedClient(Reply(text="ok"), load_gate=gate, load_error=error)
    async with open_chat(client=client, ready=False) as chat:
        await chat.settle()
        await chat.enter("one")
        await chat.enter("two")
        await chat.press("x")
        gate.set()
        await chat.until(lambda: chat.notes)
        assert chat.prompt.text == "one\n\ntwo\n\nx" and not chat.screen.waiting
        client.load_error = None
        await chat.press("f5")
        await chat.idle()
        await chat.press("enter")
        await chat.idle()
        assert chat.texts == ["one\n\ntwo\n\nx", "ok"]


async def test_another_conversation_gets_nothing_typed_ahead_for_this_one(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(client=ScriptedClient(Reply(text="ok"), load_gate=gate), ready=False) as chat:
        await chat.settle()
        await chat.enter("for the first one")
        await chat.press("ctrl+n")
        gate.set()
        await chat.idle()
        assert chat.texts == [] and chat.prompt.text == "for the first one"


async def test_a_refused_setting_gives_back_what_was_typed_ahead(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="first", gate=gate)) as chat:
        await chat.enter("one")
        await chat.enter("two")
        await chat.enter("three")
        # What /set would not take.
        chat.app.settings = ChatSettings(GenerationRequest(depth="odd"))
        gate.set()
        await chat.idle()
        assert len(chat.client.requests) == 1 and chat.prompt.text == "three"


async def test_typing_while_the_model_loads(open_chat) -> None:
    gate = asyncio.Event()
    steps = (LoadProgress("weights", 2_100_000_000, 4_600_000_000),)
    client = ScriptedClient(Reply(text="hello"), load_gate=gate, load_steps=steps)
    async with open_chat(client=client, ready=False) as chat:
        await chat.settle()
        assert "weights: 2.1 GB of 4.6 GB (45 %)" in chat.screen.query_one(Activity).text
        await chat.enter("hi")
        assert not client.requests
        gate.set()
        await chat.idle()
        assert chat.texts == ["hi", "hello"]


async def test_a_first_message_from_the_command_line(open_chat) -> None:
    async with open_chat(Reply(text="hello"), first="hi there") as chat:
        assert chat.texts == ["hi there", "hello"]


async def test_a_model_that_cannot_load_says_why_and_how_to_go_on(open_chat) -> None:
    client = ScriptedClient(load_error=ModelLoadError("The weights are damaged; download them again."))
    async with open_chat(client=client) as chat:
        assert "The weights are damaged" in chat.notes[0] and "F5" in chat.notes[0]
        client.load_error = None
        await chat.press("f5")
        await chat.idle()
        await chat.say("hi")
        assert chat.texts == ["hi", "hi"]


async def test_a_dead_engine_is_a_sentence_and_a_key(open_chat) -> None:
    script = [Reply(text="a b c d e f", fails_at=1, dies=True), Reply(text="Back.")]
    async with open_chat(script) as chat:
        await chat.say("go")
        assert "SIGKILL" in chat.notes[-1] and "/retry" in chat.notes[-1] and "F5" in chat.notes[-1]
        assert chat.texts == ["go", "a b c"]
        chat.client._state = "failed"
        chat.screen.tick()
        assert "F5" in chat.screen.query_one(StatusLine).line
        await chat.press("f5")
        await chat.idle()
        await chat.enter("/retry")
        await chat.idle()
        assert chat.texts == ["go", "Back."]


async def test_an_answer_that_starts_again_shows_no_text_twice(open_chat) -> None:
    class Replaying(ScriptedClient):
        async def submit(self, request: GenerationRequest):  # type: ignore[override, no-untyped-def]  # a test double
            async for event in super().submit(request):
                yield event
                if event.kind == "text":
                    break
            async for event in super().submit(request):
                yield event

    async with open_chat(client=Replaying(Reply(text="one two three"))) as chat:
        await chat.say("go")
        assert chat.texts[1] == "one two three"
        assert chat.screen.query_one(Prose).source == "one two three"


async def test_a_question_that_does_not_fit_is_refused_and_given_back(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("word " * 5000)
        assert "context is 4,096" in chat.notes[-1]
        assert chat.texts == [] and chat.prompt.text.startswith("word")


async def test_what_is_sent_the_moment_a_question_was_refused(open_chat) -> None:
    async with open_chat([Reply(error=RequestError("It does not fit.")), Reply(text="ok")]) as chat:
        await chat.screen.submit("too long")
        while chat.screen.turn is not None:
            await asyncio.sleep(0)
        chat.prompt.clear_all()
        await chat.screen.submit("next")
        await chat.idle()
        assert chat.texts == ["next", "ok"]


async def test_running_out_of_memory_keeps_the_question(open_chat) -> None:
    async with open_chat([Reply(error=MemoryRefusedError("The prompt needs 3 GB more.")), Reply(text="Ok.")]) as chat:
        await chat.say("go")
        assert chat.texts == ["go"] and "3 GB more" in chat.notes[-1]
        await chat.enter("/retry")
        await chat.idle()
        assert chat.texts == ["go", "Ok."]


async def test_an_answer_cut_off_says_so(open_chat) -> None:
    async with open_chat(Reply(text="a b c d e f g")) as chat:
        await chat.enter("/set max_tokens 3")
        await chat.say("go")
        view = chat.screen.query_one(AnswerView)
        assert "cut off" in view._foot_text()


async def test_an_empty_answer_is_an_answer(open_chat) -> None:
    async with open_chat(Reply(text="")) as chat:
        await chat.say("go")
        assert chat.texts == ["go", ""]


async def test_no_drafter_is_explained(open_chat) -> None:
    info = replace(DEFAULT_INFO, drafter=None, drafter_reason="no drafter is known for it", kind="plain")
    async with open_chat(client=ScriptedClient(info=info)) as chat:
        assert "No drafter: no drafter is known for it." in chat.notes[0]
        assert "no drafter" in chat.screen.query_one(StatusLine).line


@pytest.mark.parametrize(("depth", "explained"), [("4", True), ("full", True), ("0", False)])
async def test_a_depth_without_a_drafter_is_explained(open_chat, depth: str, explained: bool) -> None:
    info = replace(DEFAULT_INFO, drafter=None, drafter_reason="no drafter is known for it", kind="plain")
    async with open_chat(client=ScriptedClient(info=info)) as chat:
        before = len(chat.notes)
        await chat.enter(f"/set depth {depth}")
        said = chat.notes[before:]
        assert said[0] == f"depth is {depth}." and len(said) == 1 + explained
        assert not explained or "No drafter: no drafter is known for it." in said[1]


async def test_thinking_folds_when_the_answer_starts(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="Four.", thinking="Two and two", gates={1: gate})) as chat:
        await chat.enter("2+2")
        await chat.until(lambda: chat.screen.query(ThinkingBlock))
        block = chat.screen.query_one(ThinkingBlock)
        assert block.open
        gate.set()
        await chat.idle()
        assert not block.open and "3 tokens" in block._title()
        await chat.press("ctrl+t")
        assert block.open
        await chat.pilot.click(".thinking-title")
        assert not block.open


async def test_prefill_shows_how_far_it_is(open_chat) -> None:
    gate = asyncio.Event()
    reply = Reply(text="x", prefill=4, prefill_gate=gate, prompt_tokens=3000)
    async with open_chat(reply) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.prefill_done)
        chat.screen.tick()
        assert "reading the prompt: 750 of 3.0k tokens" in chat.screen.query_one(Activity).text
        gate.set()
        await chat.idle()


async def test_the_status_line_has_the_engines_numbers(open_chat) -> None:
    async with open_chat(Reply(text="a b c d e f", prompt_tokens=3100)) as chat:
        await chat.say("go")
        assert chat.screen.query_one(StatusLine).line == (
            "model · 240.0 tok/s · accepted 2.0/15 · depth 4.0 · ctx 3.1k/4.1k (76 %) · peak 1 MB"
        )


async def test_escapes_in_an_answer_do_not_reach_the_screen(open_chat) -> None:
    text = "a\x1b]52;c;eA==\x07b\n\n```\n\x1b[2J\n```\n<b>html</b> [x](javascript:1)"
    async with open_chat(Reply(text=text)) as chat:
        await chat.say("go")
        drawn = "".join(segment.text for line in chat.screen._compositor.render_strips() for segment in line)
        assert "\x1b" not in drawn and "\x07" not in drawn
        assert "␛[2J" in drawn and "<b>html</b>" in drawn


async def test_code_is_copied_from_its_source(open_chat) -> None:
    async with open_chat(Reply(text="```py\nif x:\n\ty\n```")) as chat:
        await chat.say("go")
        await chat.pilot.click(CopyLabel)
        await chat.settle()
        assert chat.copied == ["if x:\n\ty"]


async def test_a_failure_of_saving_is_shown_and_the_chat_goes_on(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="fine")) as chat:
        chat.screen.session.path.mkdir()
        await chat.say("go")
        assert chat.texts == ["go", "fine"]
        assert any("cannot be opened" in n.message for n in chat.app._notifications)


async def test_an_answer_may_be_long_and_fast(open_chat) -> None:
    text = "".join(f"Line {n} of `code` and text.\n\n```py\nx{n} = {n}\n```\n\n" for n in range(24))
    async with open_chat(Reply(text=text, per_round=8)) as chat:
        await chat.say("go")
        assert chat.texts[1] == text.strip("\n")
        assert [block.code for block in chat.screen.query(CodeBlock)] == [f"x{n} = {n}" for n in range(24)]


async def test_unforeseen_engine_errors_are_sentences_too(open_chat) -> None:
    async with open_chat([Reply(error=MacspecError("The device is lost."))]) as chat:
        await chat.say("go")
        assert chat.notes[-1].startswith("Error: The device is lost.")
