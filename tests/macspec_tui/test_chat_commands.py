"""Every slash command, in the chat."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from macspec.worker.scripted import Reply, ScriptedClient
from macspec_tui.screens.help import HelpScreen
from macspec_tui.screens.sessions import SessionsScreen
from macspec_tui.store import SessionStore
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.find_bar import FindBar
from macspec_tui.widgets.user_message import UserMessage

CODE = "```py\na = 1\n```\n\n```sh\nls\n```\n"


async def test_help(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/help")
        assert isinstance(chat.app.screen, HelpScreen)
        await chat.press("escape")
        assert chat.app.screen is chat.screen


async def test_new_keeps_the_system_prompt_and_the_old_conversation(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.enter("/system Be brief.")
        await chat.say("one")
        await chat.press("ctrl+n")
        assert chat.texts == [] and not chat.screen.query(AnswerView)
        assert chat.screen.session.conversation.system == "Be brief."
        assert [summary.title for summary in store.list()] == ["one"]


async def test_model_shows_and_loads(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/model")
        assert "scripted/model" in chat.notes[-1] and "scripted/drafter" in chat.notes[-1]
        await chat.enter("/model other none")
        await chat.idle()
        assert (chat.client.loads[-1].model, chat.client.loads[-1].drafter) == ("other", "none")


async def test_system(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/system")
        assert "no system prompt" in chat.notes[-1]
        await chat.enter("/system Be brief.")
        await chat.enter("/system")
        assert chat.notes[-1] == "Be brief."
        await chat.enter("/system -")
        assert chat.screen.session.conversation.system == ""


async def test_set(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/set temperature 0.7")
        await chat.enter("/set top_k=40")
        await chat.enter("/set depth 4")
        await chat.say("go")
        request = chat.client.requests[0]
        assert (request.sampling.temperature, request.sampling.top_k, request.depth) == (0.7, 40, "4")
        await chat.enter("/set temperature")
        assert chat.notes[-1] == "temperature is 0.7."
        await chat.enter("/set temperature 900")
        assert chat.notes[-1].startswith("Error: ") and "900" in chat.notes[-1]
        await chat.enter("/set nope")
        assert "/set lists" in chat.notes[-1]
        await chat.enter("/set")
        assert "repetition_penalty" in chat.notes[-1]


async def test_retry_keeps_both_answers(open_chat) -> None:
    async with open_chat([Reply(text="first"), Reply(text="second")]) as chat:
        await chat.say("go")
        await chat.enter("/retry")
        await chat.idle()
        assert chat.texts == ["go", "second"]
        assert chat.client.requests[0].messages == chat.client.requests[1].messages
        view = chat.screen.query_one(AnswerView)
        assert "‹ 2/2 ›" in view._foot_text()
        view.focus()
        await chat.press("left")
        assert chat.texts == ["go", "first"]
        await chat.press("left")
        assert chat.texts == ["go", "first"]
        await chat.press("right")
        assert chat.texts == ["go", "second"]


async def test_a_retry_stopped_before_a_word_shows_the_old_answer(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat([Reply(text="first"), Reply(text="second", gate=gate)]) as chat:
        await chat.say("go")
        await chat.enter("/retry")
        await chat.until(lambda: chat.client.active)
        await chat.press("escape")
        gate.set()
        await chat.idle()
        assert chat.texts == ["go", "first"] and chat.prompt.text == ""


async def test_edit_branches(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("one")
        await chat.say("two")
        await chat.enter("/edit 1")
        assert chat.prompt.text == "one"
        chat.prompt.put("uno")
        await chat.press("enter")
        await chat.idle()
        assert chat.texts == ["uno", "ok"]
        chat.screen.query_one(UserMessage).focus()
        await chat.press("left")
        assert chat.texts == ["one", "ok", "two", "ok"]
        assert [m.text for m in store.load(chat.screen.session.id).conversation.path()] == chat.texts


async def test_edit_of_the_last_message_can_be_left(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("one")
        await chat.enter("/edit")
        await chat.press("escape")
        assert chat.prompt.text == "" and chat.screen.editing is None
        await chat.say("two")
        assert chat.texts == ["one", "ok", "two", "ok"]


@pytest.mark.parametrize("text", ["/edit", "/retry", "/undo", "/export md", "/copy 1"])
async def test_nothing_to_do_is_said(open_chat, text: str) -> None:
    async with open_chat() as chat:
        await chat.enter(text)
        assert chat.notes[-1].startswith("Error: ")


async def test_edit_of_a_message_that_is_not_there(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("one")
        await chat.enter("/edit 7")
        assert "from 1 to 1" in chat.notes[-1]


async def test_undo(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("one")
        await chat.say("two")
        await chat.enter("/undo")
        assert chat.texts == ["one", "ok"] and chat.prompt.text == "two"


async def test_copy(open_chat) -> None:
    async with open_chat(Reply(text=CODE)) as chat:
        await chat.say("go")
        for text in ("/copy", "/copy 2", "/copy all", "/copy 3"):
            await chat.enter(text)
        assert chat.copied[:2] == [CODE.strip("\n"), "ls"]
        assert chat.copied[2].startswith("# go")
        assert "has 2 code blocks" in chat.notes[-1]


async def test_copy_during_an_answer_takes_what_is_there(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d", gates={1: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.rounds)
        await chat.enter("/copy")
        assert chat.copied == ["a b c"]
        gate.set()
        await chat.idle()


async def test_export(open_chat, tmp_path: Path) -> None:
    async with open_chat(Reply(text=CODE)) as chat:
        await chat.say("go")
        await chat.enter(f"/export json {tmp_path / 'x.json'}")
        assert json.loads((tmp_path / "x.json").read_text())["title"] == "go"
        assert "x.json" in chat.notes[-1]


async def test_save_names_the_conversation(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.enter("/save")
        assert "nothing to save" in chat.notes[-1]
        await chat.say("go")
        await chat.enter("/save Rivers and tides")
        assert store.list()[0].title == "Rivers and tides" and "--resume" in chat.notes[-1]


async def test_sessions_open_search_and_delete(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        for text in ("rain", "tides"):
            await chat.say(text)
            await chat.enter("/new")
        await chat.enter("/sessions")
        dialog = chat.app.screen
        assert isinstance(dialog, SessionsScreen)
        await chat.press(*"rain", "enter")
        await chat.settle()
        assert chat.texts == ["rain", "ok"]
        await chat.enter("/sessions tides")
        await chat.press("ctrl+x")
        assert len(store.list()) == 2
        await chat.press("ctrl+x")
        assert [summary.title for summary in store.list()] == ["rain"]
        await chat.press("escape")


async def test_the_open_session_is_not_deleted(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("rain")
        await chat.enter("/sessions")
        await chat.press("ctrl+x", "ctrl+x")
        assert len(store.list()) == 1


async def test_think(open_chat) -> None:
    async with open_chat(Reply(text="ok", thinking="hm")) as chat:
        await chat.enter("/think off")
        await chat.say("go")
        assert chat.client.requests[0].thinking is False
        await chat.enter("/think sometimes")
        assert "/think on" in chat.notes[-1]


async def test_context(open_chat) -> None:
    async with open_chat(Reply(text="one two three")) as chat:
        await chat.enter("/system You are brief.")
        await chat.say("hello there")
        await chat.enter("/context")
        assert "system           3" in chat.notes[-1] and "4,096" in chat.notes[-1]


async def test_stats(open_chat) -> None:
    async with open_chat(Reply(text="one two three")) as chat:
        await chat.enter("/stats")
        await chat.say("go")
        await chat.enter("/stats")
        assert "Last answer: 3 tokens" in chat.notes[-1] and "3 tokens generated" in chat.notes[-1]


async def test_theme(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/theme light")
        assert chat.app.theme == "macspec-light"
        await chat.enter("/theme ansi")
        assert chat.app.theme == "ansi-dark"
        await chat.enter("/theme pink")
        assert "dark, light" in chat.notes[-1]
        await chat.enter("/theme")
        assert "ansi" in chat.notes[-1]


async def test_find(open_chat) -> None:
    async with open_chat(Reply(text="The moon pulls.\n\nThe MOON again.")) as chat:
        await chat.say("moon?")
        await chat.press("ctrl+f", *"moon", "enter")
        assert chat.screen.finder.position == (1, 3)
        [found] = chat.screen.query(".found")
        assert "MOON" in str(found.visual)
        await chat.press("enter", "enter")
        assert chat.screen.finder.position == (3, 3)
        await chat.press("up")
        assert chat.screen.finder.position == (2, 3)
        await chat.press("escape")
        assert not chat.screen.query_one(FindBar).display and not chat.screen.query(".found")
        assert chat.screen.focused is chat.prompt
        await chat.enter("/find nothing-like-it")
        assert chat.screen.finder.position == (0, 0)


async def test_panel(open_chat) -> None:
    async with open_chat(size=(80, 24)) as chat:
        assert not chat.screen.panel.display
        await chat.press("ctrl+p")
        assert chat.screen.panel.display
        await chat.enter("/panel")
        assert not chat.screen.panel.display


async def test_runs(open_chat) -> None:
    async with open_chat(Reply(text="one two three four five six")) as chat:
        await chat.say("go")
        view = chat.screen.query_one(AnswerView)
        await chat.press("ctrl+o")
        assert view.has_class("-runs") and view.query_one(".runs-text").display
        assert [run.drafted for run in chat.screen.runs[view.message.id]] == [True, False, True, False]
        await chat.enter("/runs")
        assert not view.has_class("-runs")


async def test_restart(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/restart")
        await chat.idle()
        assert len(chat.client.loads) == 2


async def test_quit(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/quit")
        assert chat.app._exit


async def test_commands_that_change_the_conversation_wait_for_the_answer(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d", gates={1: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.rounds)
        for text in ("/new", "/retry", "/undo", "/edit", "/model x"):
            await chat.enter(text)
            assert "Esc stops it" in chat.notes[-1]
        gate.set()
        await chat.idle()


async def test_an_unknown_command_is_not_sent_to_the_model(open_chat) -> None:
    async with open_chat() as chat:
        await chat.enter("/frobnicate now")
        assert not chat.client.requests and "//" in chat.notes[-1]


async def test_a_message_may_start_with_a_slash(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("//etc/hosts")
        assert chat.texts[0] == "/etc/hosts"


async def test_single_letters_are_messages(open_chat) -> None:
    async with open_chat() as chat:
        await chat.say("q")
        assert chat.texts == ["q", "q"]


async def test_no_other_conversation_opens_under_an_answer_that_began_behind_the_list(open_chat, store) -> None:
    other = store.new()
    other.save(other.conversation.say("about tides"))
    other.close()
    loading, answering = asyncio.Event(), asyncio.Event()
    client = ScriptedClient(Reply(text="one two three four", gates={1: answering}), load_gate=loading)
    async with open_chat(client=client, ready=False) as chat:
        await chat.enter("go")
        await chat.enter("/sessions tides")
        assert isinstance(chat.app.screen, SessionsScreen)
        loading.set()
        await chat.until(lambda: chat.screen.live.rounds)
        await chat.press("enter")
        assert "answer has ended" in chat.notes[-1]
        answering.set()
        await chat.idle()
        assert chat.texts == ["go", "one two three four"]
        await chat.enter("/sessions tides")
        await chat.press("enter")
        assert chat.texts == ["about tides"]
