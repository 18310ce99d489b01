"""Scrolling, following, focus, size, colours, panel: reading a conversation."""

from __future__ import annotations

import asyncio

import pytest
from rich.cells import cell_len

from macspec.worker.scripted import Reply
from macspec_tui.app import farewell
from macspec_tui.conversation import Message
from macspec_tui.store import Session, SessionStore
from macspec_tui.widgets import conversation
from macspec_tui.widgets.activity import Activity
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.conversation import FIRST, PAGE, SPARE, Earlier
from macspec_tui.widgets.key_bar import KeyBar
from macspec_tui.widgets.note import Note
from macspec_tui.widgets.side_panel import SidePanel
from macspec_tui.widgets.user_message import UserMessage

LONG = "\n\n".join(f"Paragraph {n}." for n in range(36))


def _long_session(store: SessionStore, turns: int) -> Session:
    session = store.new()
    for number in range(turns):
        said = session.conversation.say(f"question {number}")
        answer = session.conversation.add(Message("assistant", f"answer **{number}**\n\n- a\n- b", parent=said.id))
        session.save(said, answer)
    return session


async def test_new_text_is_followed_at_the_end_only(open_chat) -> None:
    gate = asyncio.Event()
    script = [Reply(text=LONG), Reply(text=LONG, gates={10: gate})]
    async with open_chat(script) as chat:
        await chat.say("one")
        view = chat.screen.conversation
        assert view.following and view.scroll_y == view.max_scroll_y
        await chat.enter("two")
        await chat.until(lambda: len(chat.screen.live.rounds) >= 10)
        await chat.press("pageup")
        assert not view.following
        at = view.scroll_y
        gate.set()
        await chat.idle()
        assert view.scroll_y == at
        await chat.press("ctrl+end")
        assert view.following and view.scroll_y == view.max_scroll_y


async def test_the_reader_is_told_of_new_text_below(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat([Reply(text=LONG), Reply(text=LONG, gates={10: gate})]) as chat:
        await chat.say("one")
        await chat.enter("two")
        await chat.until(lambda: len(chat.screen.live.rounds) >= 10)
        await chat.press("pageup")
        assert "new text" in chat.screen.query_one(Activity).text
        gate.set()
        await chat.idle()


async def test_scrolling_back_to_the_end_follows_again(open_chat) -> None:
    async with open_chat(Reply(text=LONG)) as chat:
        await chat.say("one")
        view = chat.screen.conversation
        await chat.press("pageup")
        assert not view.following
        await chat.press("pagedown", "pagedown")
        assert view.following


async def test_home_and_end_of_an_empty_prompt_scroll(open_chat) -> None:
    async with open_chat(Reply(text=LONG)) as chat:
        await chat.say("one")
        await chat.press("home")
        assert chat.screen.conversation.scroll_y == 0
        await chat.press("end")
        assert chat.screen.conversation.following


async def test_the_wheel_scrolls(open_chat) -> None:
    async with open_chat(Reply(text=LONG)) as chat:
        await chat.say("one")
        view = chat.screen.conversation
        view._on_mouse_scroll_up(_wheel(view))
        await chat.settle()
        assert view.scroll_y < view.max_scroll_y and not view.following


def _wheel(view):  # type: ignore[no-untyped-def]  # a mouse event at a widget
    from textual.events import MouseScrollUp

    return MouseScrollUp(view, 1, 1, 0, -1, 0, False, False, False)


async def test_a_long_session_opens_with_its_newest_messages(open_chat, store: SessionStore) -> None:
    async with open_chat(session=_long_session(store, 200)) as chat:
        view = chat.screen.conversation
        await chat.until(lambda: view.virtual_size.height >= view.size.height + SPARE)
        shown = len(chat.screen.query(".message"))
        assert FIRST <= shown <= FIRST + 2 * PAGE
        assert f"{400 - shown} earlier" in str(chat.screen.query_one(Earlier).visual)
        await chat.press("ctrl+home")
        await chat.until(lambda: len(chat.screen.query(".message")) == shown + PAGE)
        chat.screen.query_one(Earlier).post_message(Earlier.Wanted())
        await chat.until(lambda: len(chat.screen.query(".message")) == shown + 2 * PAGE)


async def test_what_is_read_stays_in_place_when_earlier_messages_appear(open_chat, store: SessionStore) -> None:
    async with open_chat(session=_long_session(store, 30)) as chat:
        view = chat.screen.conversation
        await chat.until(lambda: view.virtual_size.height >= view.size.height + SPARE)
        first = chat.screen.query(UserMessage).first()
        view.release_anchor()
        view.scroll_to(y=3, animate=False)
        await chat.settle()
        before = first.region.y
        await view.show_earlier()
        await chat.settle()
        assert first.region.y == before


async def test_what_is_mounted_is_bounded_by_the_view(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="ok"), session=_long_session(store, 2)) as chat:
        view = chat.screen.conversation
        for number in range(20):
            await chat.say(f"more {number}")
            # What is kept, the message that reaches over it, and the turn that came last.
            assert view.virtual_size.height <= (conversation.KEEP + 1) * view.size.height
        assert chat.screen.query(Earlier) and view.virtual_size.height >= conversation.KEEP * view.size.height
        assert len(chat.texts) == 44


async def test_nothing_is_dropped_while_the_reader_is_above(open_chat, store: SessionStore) -> None:
    async with open_chat(Reply(text="ok"), session=_long_session(store, 40)) as chat:
        view = chat.screen.conversation
        await chat.until(lambda: view.virtual_size.height >= view.size.height + SPARE)
        while view.virtual_size.height < 4 * view.size.height:
            await view.show_earlier()
            await chat.settle()
        shown = len(chat.screen.query(".message"))
        view.release_anchor()
        view.scroll_to(y=1, animate=False)
        await chat.settle()
        await chat.screen.send("from above")
        await chat.idle()
        assert len(chat.screen.query(".message")) == shown + 2


async def test_finding_mounts_what_is_found(open_chat, store: SessionStore) -> None:
    async with open_chat(session=_long_session(store, 20)) as chat:
        await chat.enter("/find question 3")
        for _ in range(20):
            if chat.screen.finder.position[0] == chat.screen.finder.position[1]:
                break
            await chat.screen.find_step("question 3", 1)
        await chat.settle()
        assert "question 3" in str(chat.screen.query(".found").first().visual)


async def test_a_resumed_session_says_what_is_wrong_with_it(open_chat, store: SessionStore) -> None:
    session = _long_session(store, 1)
    session.save(session.conversation.say("unanswered"))
    session.close()
    with session.path.open("ab") as file:
        file.write(b"garbage\n")
    async with open_chat(Reply(text="ok"), session=store.load(session.id)) as chat:
        assert "1 damaged" in chat.notes[0] and "/retry" in chat.notes[1]
        await chat.enter("/retry")
        await chat.idle()
        assert chat.texts[-2:] == ["unanswered", "ok"]


async def test_keys_on_messages(open_chat) -> None:
    async with open_chat([Reply(text="one"), Reply(text="two")]) as chat:
        await chat.say("a")
        await chat.press("tab")
        assert isinstance(chat.screen.focused, AnswerView)
        await chat.press("c", "up")
        assert chat.copied == ["one"] and isinstance(chat.screen.focused, UserMessage)
        await chat.press("up", "c", "down", "r")
        await chat.idle()
        assert chat.copied == ["one", "a"] and chat.texts == ["a", "two"]
        await chat.press("tab", "up", "e")
        assert chat.prompt.text == "a" and chat.screen.editing is not None
        await chat.press("escape", "tab", "down")
        assert chat.screen.focused is chat.prompt
        await chat.press("tab", "escape")
        assert chat.screen.focused is chat.prompt


async def test_the_key_line_follows_the_focus_and_can_be_clicked(open_chat) -> None:
    async with open_chat(Reply(text="one")) as chat:
        bar = chat.screen.query_one(KeyBar)
        assert str(bar.visual).startswith("Enter send  F1 help")
        await chat.pilot.click(KeyBar, offset=(16, 0))
        assert chat.app.screen is not chat.screen
        await chat.press("escape")
        await chat.say("a")
        await chat.press("tab")
        assert str(bar.visual).startswith("Esc prompt  c copy  r again")


async def test_a_long_message_of_mine_folds(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.say("\n".join(f"line {n}" for n in range(50)))
        message = chat.screen.query_one(UserMessage)
        assert "40 more lines" in str(message.query_one(".user-text").visual)
        message.focus()
        await chat.press("enter")
        assert "line 49" in str(message.query_one(".user-text").visual)


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (120, 40), (200, 60)])
async def test_every_size_shows_whole_words(open_chat, size: tuple[int, int]) -> None:
    async with open_chat(Reply(text="日本語 नमस्ते 👨‍👩‍👧 שלום é ⏺️ " * 5 + "\n\n" + "x" * 300), size=size) as chat:
        await chat.say("wide 日本語 " * 6)
        lines = ["".join(s.text for s in strip) for strip in chat.screen._compositor.render_strips()]
        assert len(lines) == size[1]
        assert {cell_len(line) for line in lines} == {size[0]}
        assert "Enter send" in lines[-1] and "model" in lines[-2]


async def test_resizing_at_any_time(open_chat) -> None:
    gate = asyncio.Event()
    async with open_chat(Reply(text=LONG, gates={10: gate})) as chat:
        await chat.enter("go")
        await chat.until(lambda: len(chat.screen.live.rounds) >= 10)
        for size in ((40, 15), (130, 40), (20, 6), (80, 24)):
            await chat.pilot.resize_terminal(*size)
        gate.set()
        await chat.idle()
        assert chat.texts[1] == LONG and chat.screen.conversation.following


async def test_the_panel_shows_itself_where_there_is_room(open_chat) -> None:
    async with open_chat(Reply(text="a b c d e f g h"), size=(120, 40)) as chat:
        await chat.say("go")

        def shown() -> str:
            chat.screen.tick()
            return _panel_text(chat.screen.query_one(SidePanel))

        await chat.until(lambda: "tok/s over the answer" in shown())
        text = shown()
        for words in ("tok/s over the answer", "τ 2.67", "accepted 5 of 12 verified", "21 drafted", "▲", "now 5 rows"):
            assert words in text
        await chat.pilot.resize_terminal(80, 24)
        assert not chat.screen.panel.display


async def test_the_panel_explains_parking(open_chat) -> None:
    async with open_chat(Reply(text="a b c d e f", parked=True), size=(120, 40)) as chat:
        await chat.say("go")
        text = _panel_text(chat.screen.query_one(SidePanel))
        assert "Parked: on this machine" in text and "plain 100 % of 2 rounds" in text


def _panel_text(panel: SidePanel) -> str:
    return "\n".join(line for section in panel.children for line in section.lines)  # type: ignore[attr-defined]


async def test_no_colour_is_sent_with_no_color(open_chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_chat(Reply(text="# Title\n\n```py\nx = 1\n```\n`y`"), theme=None) as chat:
        await chat.say("go")
        await chat.press("/", "s")
        svg = chat.app.export_screenshot()
    drawn = svg[svg.index("-matrix") :]
    assert {fill for fill in _fills(drawn) if fill not in GREYS} == set()


#: The window around the picture, and the terminal's own foreground, dim foreground and background.
GREYS = {"#292929", "#c5c8c6", "#868887", "#ff5f57", "#febc2e", "#28c840", "rgba(255,255,255,0.35)"}


def _fills(svg: str) -> set[str]:
    import re

    return set(re.findall(r'fill[=:] ?"?([^";} ]+)', svg))


async def test_notes_are_not_part_of_the_conversation(open_chat) -> None:
    async with open_chat(Reply(text="ok")) as chat:
        await chat.enter("/system")
        await chat.say("go")
        assert chat.screen.query(Note) and chat.client.requests[0].messages == ({"role": "user", "content": "go"},)


async def test_the_last_answer_stays_on_the_normal_screen(open_chat) -> None:
    async with open_chat(Reply(text="one \x1b[2J two")) as chat:
        assert farewell(chat.screen.session) == ""
        await chat.say("go")
        text = farewell(chat.screen.session)
        assert text.startswith("one ␛[2J two\n\n(") and "tok/s" in text
        assert f"macspec chat --resume {chat.screen.session.id}" in text
