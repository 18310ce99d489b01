"""Keys that no other test presses, and that the help page names them all."""

from __future__ import annotations

import asyncio

import pytest
from textual.binding import Binding

from macspec.worker.scripted import Reply, ScriptedClient
from macspec_tui.app import ChatApp
from macspec_tui.conversation import Message
from macspec_tui.screens.chat import ChatScreen
from macspec_tui.screens.help import KEYS, HelpScreen
from macspec_tui.screens.history_search import HistorySearch
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.find_bar import FindBar
from macspec_tui.widgets.message_actions import MessageActions
from macspec_tui.widgets.side_panel import SidePanel
from macspec_tui.widgets.thinking import ThinkingBlock
from macspec_tui.widgets.user_message import UserMessage


@pytest.mark.parametrize("leave", ["escape", "q", "f1", "enter"])
async def test_help_opens_and_closes(open_chat, leave: str) -> None:
    async with open_chat() as chat:
        await chat.press("f1")
        assert isinstance(chat.app.screen, HelpScreen)
        await chat.press("down", leave)
        assert chat.app.screen is chat.screen


def test_the_help_page_names_every_key() -> None:
    named = {key.strip().lower() for _, rows in KEYS for keys, _ in rows for key in keys.replace(" ", ",").split(",")}
    names = {"escape": "esc", "left": "←", "right": "→", "up": "↑", "down": "↓"}
    #: Letters that do the same as an arrow, for those who expect them.
    second = {"k", "j"}
    for owner in (ChatApp, ChatScreen, AnswerView, UserMessage, MessageActions):
        for binding in owner.BINDINGS:
            assert isinstance(binding, Binding)
            for key in binding.key.split(","):
                if binding.show and key not in second:
                    assert names.get(key, key) in named, f"{owner.__name__}: {key}"


async def test_the_panel_has_two_keys(open_chat) -> None:
    async with open_chat() as chat:
        panel = chat.screen.query_one(SidePanel)
        shown = panel.display
        await chat.press("f2")
        assert panel.display is not shown
        await chat.press("ctrl+p")
        assert panel.display is shown


async def test_leaving_at_once(open_chat) -> None:
    async with open_chat() as chat:
        chat.prompt.put("typed")
        await chat.press("ctrl+q")
        assert chat.app.return_code == 0


async def test_drawing_again_changes_nothing(open_chat) -> None:
    async with open_chat(Reply(text="**ok**")) as chat:
        await chat.say("go")
        before = chat.app.export_screenshot()
        await chat.press("ctrl+l")
        assert chat.app.export_screenshot() == before


async def test_letters_move_between_messages(open_chat) -> None:
    async with open_chat(Reply(text="ok", thinking="hm")) as chat:
        await chat.say("go")
        await chat.press("shift+tab")
        assert isinstance(chat.screen.focused, AnswerView)
        block = chat.screen.query_one(ThinkingBlock)
        await chat.press("t")
        assert block.open
        await chat.press("t", "k")
        assert not block.open and isinstance(chat.screen.focused, UserMessage)
        await chat.press("j", "j")
        assert chat.screen.focused is chat.prompt


async def test_typing_can_be_undone_and_redone(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("h", "i", "ctrl+z")
        assert chat.prompt.text != "hi"
        await chat.press("ctrl+y")
        assert chat.prompt.text == "hi"


async def test_every_way_through_what_was_found(open_chat) -> None:
    async with open_chat([Reply(text="word one"), Reply(text="word two")]) as chat:
        await chat.say("a")
        await chat.say("b")
        await chat.press("ctrl+f", *"word", "enter")
        position = chat.screen.finder.position
        for key, step in (("down", 1), ("up", -1), ("enter", 1), ("shift+enter", -1)):
            await chat.press(key)
            assert position[1] == 2 and chat.screen.finder.position[0] == (position[0] - 1 + step) % 2 + 1
            position = chat.screen.finder.position
        await chat.press("escape")
        assert not chat.screen.query_one(FindBar).display and chat.screen.focused is chat.prompt


async def test_every_way_through_a_list(open_chat) -> None:
    async with open_chat() as chat:
        for number in range(30):
            chat.app.history.add(f"said {number}")
        await chat.press("ctrl+r")
        screen = chat.app.screen
        assert isinstance(screen, HistorySearch) and screen.chosen == "said 29"
        for key, chosen in (("down", 28), ("pagedown", 18), ("up", 19), ("pageup", 29), ("up", 29)):
            await chat.press(key)
            assert screen.chosen == f"said {chosen}"
        await chat.press("pagedown", "pagedown", "pagedown", "pagedown", "enter")
        assert chat.prompt.text == "said 0"


async def test_a_message_cannot_be_edited_while_an_answer_runs_and_the_chat_says_so(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat([Reply(text="ok"), Reply(text="one two three four", gates={1: gate})]) as chat:
        await chat.say("go")
        await chat.enter("again")
        await chat.until(lambda: chat.screen.live.rounds)
        chat.screen.query(UserMessage).first().focus()
        await chat.press("e")
        assert "answer to end" in chat.notes[-1] and chat.screen.editing is None
        gate.set()
        await chat.idle()
        assert chat.texts == ["go", "ok", "again", "one two three four"]


async def test_an_answer_cannot_be_made_again_while_the_model_loads_and_the_chat_says_so(open_chat, store) -> None:
    session = store.new()
    session.save(session.conversation.say("go"))
    session.save(session.conversation.add(Message("assistant", "ok", parent=session.conversation.head)))
    gate = asyncio.Event()
    client = ScriptedClient(Reply(text="better"), load_gate=gate)
    async with open_chat(client=client, session=session, ready=False) as chat:
        await chat.settle()
        await chat.press("shift+tab", "r")
        assert "not ready" in chat.notes[-1] and not client.requests
        gate.set()
        await chat.idle()
        chat.screen.query_one(AnswerView).focus()
        await chat.press("r")
        await chat.idle()
        assert chat.texts == ["go", "better"]
