"""The prompt: new lines, pastes, history, completion."""

from __future__ import annotations

import asyncio

import pytest
from textual import events
from textual.widgets import Input

from macspec.worker.scripted import Reply
from macspec_tui.screens.history_search import HistorySearch
from macspec_tui.widgets.completion_list import CompletionList


@pytest.mark.parametrize("key", ["shift+enter", "alt+enter", "ctrl+j", "shift+\r"])
async def test_keys_that_make_a_new_line(open_chat, key: str) -> None:
    async with open_chat() as chat:
        await chat.press("a", key, "b")
        assert chat.prompt.text == "a\nb" and not chat.client.requests


async def test_a_backslash_before_enter_makes_a_new_line(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("a", "backslash", "enter", "b")
        assert chat.prompt.text == "a\nb"
        await chat.press("enter")
        await chat.idle()
        assert chat.texts[0] == "a\nb"


async def test_option_enter_of_a_mac_is_told_apart(open_chat) -> None:
    from textual._xterm_parser import XTermParser

    async with open_chat():
        keys = [event.key for event in XTermParser().feed("\x1b\rx") if isinstance(event, events.Key)]
        assert keys == ["alt+enter", "x"]


async def test_a_paste_is_one_edit_and_sends_nothing(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("x")
        chat.prompt.post_message(events.Paste("a\r\nb\rc\x1b[0m"))
        await chat.settle()
        assert chat.prompt.text == "xa\nb\nc[0m" and not chat.client.requests
        await chat.press("ctrl+z")
        assert chat.prompt.text == "x"


async def test_a_long_paste_folds_and_is_sent_in_full(open_chat) -> None:
    text = "\n".join(f"line {n}" for n in range(143))
    async with open_chat(Reply(text="ok")) as chat:
        await chat.press("a", "space")
        chat.prompt.post_message(events.Paste(text))
        await chat.settle()
        assert chat.prompt.text == "a [pasted 143 lines]"
        await chat.press("enter")
        await chat.idle()
        assert chat.texts[0] == "a " + text


async def test_two_long_pastes_stay_apart_and_backspace_removes_one(open_chat) -> None:
    async with open_chat() as chat:
        for letter in "ab":
            chat.prompt.post_message(events.Paste("\n".join([letter] * 30)))
            await chat.settle()
        assert chat.prompt.text == "[pasted 30 lines][pasted 30 lines #2]"
        await chat.press("backspace")
        assert chat.prompt.full_text == "\n".join(["a"] * 30)


async def test_a_pasted_table_of_wide_characters(open_chat) -> None:
    table = "| 名前 | 値 |\n|---|---|\n| 日本語 | 👨‍👩‍👧 |"
    async with open_chat() as chat:
        chat.prompt.post_message(events.Paste(table))
        await chat.settle()
        assert chat.prompt.text == table


async def test_history_with_the_arrow_keys(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("first")
        await chat.say("second\nline")
        await chat.press("d", "up")
        assert chat.prompt.text == "second\nline"
        await chat.press("up", "up")
        assert chat.prompt.text == "first"
        await chat.press("down")
        assert chat.prompt.text == "second\nline"
        await chat.press("down", "down")
        assert chat.prompt.text == "d"


async def test_arrows_move_inside_a_text_of_several_lines(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("old")
        await chat.press("a", "ctrl+j", "b", "up")
        assert chat.prompt.text == "a\nb" and chat.prompt.cursor_location[0] == 0


async def test_history_search(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("rain haiku")
        await chat.say("tides")
        await chat.press("ctrl+r")
        assert isinstance(chat.app.screen, HistorySearch)
        await chat.press(*"haiku")
        assert chat.app.screen.chosen == "rain haiku"
        await chat.press("enter")
        assert chat.prompt.text == "rain haiku"


async def test_history_search_can_be_left(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("a", "ctrl+r")
        assert chat.app.screen.query_one(Input).value == "a"
        assert chat.app.screen.chosen is None
        await chat.press("enter", "escape")
        assert chat.app.screen is chat.screen and chat.prompt.text == "a"


async def test_commands_are_completed_with_tab(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("/", "t", "h", "e")
        assert chat.screen.query_one(CompletionList).display
        await chat.press("tab")
        assert chat.prompt.text == "/theme "
        await chat.press("down", "tab")
        assert chat.prompt.text == "/theme dark"
        assert not chat.screen.query_one(CompletionList).display


async def test_enter_runs_the_highlighted_command(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("/", "u", "n", "enter")
        assert chat.notes[-1].startswith("Error: There is nothing to undo")


async def test_enter_completes_a_command_that_needs_more(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("/", "e", "x", "enter")
        assert chat.prompt.text == "/export "


async def test_escape_closes_the_proposals(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("/", "escape")
        assert not chat.screen.query_one(CompletionList).display and chat.prompt.text == "/"
        await chat.press("s", "up", "up")
        assert chat.screen.query_one(CompletionList).highlighted == 3


async def test_a_proposal_can_be_clicked(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("/", "t", "h")
        await chat.pilot.click(CompletionList, offset=(3, 1))
        assert chat.prompt.text == "/theme "


async def test_the_prompt_grows_and_stops_growing(open_chat) -> None:
    async with open_chat() as chat:
        chat.prompt.put("\n".join("line" for _ in range(15)))
        await chat.settle()
        assert chat.prompt.outer_size.height == 12
        chat.prompt.clear_all()
        await chat.settle()
        assert chat.prompt.outer_size.height == 3


async def test_typing_while_an_answer_streams(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text="a b c d e f", gates={1: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: chat.screen.live.rounds)
        await chat.press(*"next")
        assert chat.prompt.text == "next"
        gate.set()
        await chat.idle()
        assert chat.prompt.text == "next"


async def test_an_empty_message_is_not_sent(open_chat) -> None:
    async with open_chat() as chat:
        await chat.press("enter", "space", "enter")
        assert not chat.client.requests


async def test_the_terminals_cursor_is_where_the_text_is_typed(open_chat) -> None:
    # Input methods draw what is being composed at the terminal's cursor.
    async with open_chat() as chat:
        chat.screen.tick()
        start = chat.app.cursor_position
        assert start in chat.prompt.content_region
        await chat.press(*"日本語é")
        assert chat.app.cursor_position == start + (7, 0)
        await chat.press("ctrl+j")
        assert chat.app.cursor_position == (start.x, start.y)
        await chat.press("left")
        assert chat.app.cursor_position == start + (7, -1)


async def test_half_a_character_is_no_reason_to_fail(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        chat.prompt.post_message(events.Paste("half \udce6 of one"))
        await chat.settle()
        await chat.press("enter")
        await chat.idle()
        assert chat.texts == ["half � of one", "ok"]


async def test_a_selection_is_copied_without_decoration(open_chat) -> None:
    async with open_chat(Reply(text="```python\nx = 1\n```")) as chat:
        await chat.say("go")
        chat.screen.get_selected_text = lambda: "x = 1"  # type: ignore[method-assign]  # no mouse here
        await chat.press("ctrl+c")
        assert chat.copied == ["x = 1"] and chat.app.is_running
