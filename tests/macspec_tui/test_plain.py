"""The chat without a screen: what goes where, what ends it, what it tells the engine."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from macspec.errors import EngineDiedError, MacspecError, RequestError
from macspec.worker.scripted import DEFAULT_INFO, Reply, ScriptedClient
from macspec_tui.plain import INTERRUPTED, PlainChat
from macspec_tui.settings import ChatSettings
from macspec_tui.store import SessionStore


class Screen:
    """A plain chat on a scripted engine with its two outputs."""

    def __init__(self, folder: Path, client: ScriptedClient, **options: bool) -> None:
        self.store = SessionStore(folder)
        self.client = client
        self.out, self.notes = io.StringIO(), io.StringIO()
        session = self.store.new()
        self.chat = PlainChat(client, session, ChatSettings(), out=self.out, notes=self.notes, **options)

    def type(self, *lines: str | type[BaseException]) -> int:
        """Run a talk in which the person types these lines (or causes these exceptions), then leaves."""
        typed: Iterator[str | type[BaseException]] = iter(lines)

        def read(_label: str) -> str:
            line = next(typed, EOFError)
            if isinstance(line, str):
                return line
            raise line

        return self.chat.talk(read)


@pytest.fixture
def screen(tmp_path: Path) -> Callable[..., Screen]:
    def make(script: object = None, **options: bool) -> Screen:
        client = ScriptedClient() if script is None else ScriptedClient(script)  # type: ignore[arg-type]  # any script
        return Screen(tmp_path / "sessions", client, **options)

    return make


def test_once_writes_just_the_answer(screen: Callable[..., Screen]) -> None:
    s = screen(Reply(text="Rain taps the window."))
    assert s.chat.once("Write a haiku") == 0
    assert s.out.getvalue() == "Rain taps the window.\n"
    assert s.notes.getvalue() == ""


def test_once_sends_all_lines_as_one_message(screen: Callable[..., Screen]) -> None:
    s = screen()
    s.chat.once("one\ntwo\n\nthree")
    assert s.client.requests[0].messages == ({"role": "user", "content": "one\ntwo\n\nthree"},)


def test_once_without_a_message_is_wrong_use(screen: Callable[..., Screen]) -> None:
    with pytest.raises(RequestError, match="no message") as caught:
        screen().chat.once(" \n")
    assert caught.value.exit_code == 2


def test_once_raises_what_the_engine_reports(screen: Callable[..., Screen]) -> None:
    s = screen(Reply(text="a b c d e f g h", fails_at=1, dies=True))
    with pytest.raises(EngineDiedError):
        s.chat.once("go")
    assert s.out.getvalue() == "a b c\n"


def test_json_prints_one_event_per_line(screen: Callable[..., Screen]) -> None:
    s = screen(Reply(text="one two"), events_as_json=True)
    s.chat.once("go")
    kinds = [json.loads(line)["kind"] for line in s.out.getvalue().splitlines()]
    assert kinds[0] == "started" and kinds[-1] == "finished" and "text" in kinds


def test_terminal_escapes_are_neutralised(screen: Callable[..., Screen]) -> None:
    s = screen(Reply(text="a\x1b]52;c;eA==\x07 \x9b2J\rb"))
    s.chat.once("go")
    assert s.out.getvalue() == "a␛]52;c;eA==␇ �2Jb\n"


def test_thinking_stays_out_of_the_answer(screen: Callable[..., Screen]) -> None:
    s = screen(Reply(text="Four.", thinking="Two and two."))
    s.chat.once("2+2")
    assert s.out.getvalue() == "Four.\n"


def test_talk_sends_the_whole_conversation_with_the_system_prompt_once(screen: Callable[..., Screen]) -> None:
    s = screen([Reply(text="First."), Reply(text="Second.")])
    assert s.type("/system Be brief.", "one", "two") == 0
    assert s.client.requests[1].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "First."},
        {"role": "user", "content": "two"},
    )


def test_talk_joins_lines_that_end_in_a_backslash(screen: Callable[..., Screen]) -> None:
    s = screen()
    s.type("one\\", "two")
    assert s.client.requests[0].messages == ({"role": "user", "content": "one\ntwo"},)


def test_the_label_for_input_is_not_repeated_in_a_message_of_several_lines(screen: Callable[..., Screen]) -> None:
    # What is copied from the terminal should be what was typed, so the second line begins with nothing.
    s, labels = screen(), []
    lines = iter(["one \\", "two", "/quit"])

    def read(label: str) -> str:
        labels.append(label)
        return next(lines)

    assert s.chat.talk(read) == 0
    assert labels == ["You: ", "", "You: "]
    assert s.chat.session.conversation.path()[0].text == "one \ntwo"


def test_talk_saves_every_turn(screen: Callable[..., Screen]) -> None:
    s = screen(Reply(text="Fine."))
    s.type("How are you?")
    [summary] = s.store.list()
    assert summary.title == "How are you?"
    assert [m.text for m in s.store.load(summary.id).conversation.path()] == ["How are you?", "Fine."]


def test_two_interrupts_at_the_prompt_leave(screen: Callable[..., Screen]) -> None:
    s = screen()
    assert s.type(KeyboardInterrupt, KeyboardInterrupt) == INTERRUPTED
    assert "again" in s.notes.getvalue()


def test_an_interrupt_at_the_prompt_is_forgotten_after_a_while(screen: Callable[..., Screen]) -> None:
    s = screen()
    ticks = iter([0.0, 10.0])
    s.chat._clock = lambda: next(ticks)
    assert s.type(KeyboardInterrupt, KeyboardInterrupt) == 0


def test_a_depth_without_a_drafter_is_explained(tmp_path: Path) -> None:
    info = replace(DEFAULT_INFO, drafter=None, drafter_reason="no drafter is known for it", kind="plain")
    s = Screen(tmp_path, ScriptedClient(info=info))
    s.type("/set depth 0", "/set depth 4")
    assert s.notes.getvalue().count("No drafter: no drafter is known for it.") == 2
    assert s.notes.getvalue().index("depth = 4") < s.notes.getvalue().rindex("No drafter")


def test_an_engine_failure_does_not_end_the_talk(screen: Callable[..., Screen]) -> None:
    s = screen([Reply(error=MacspecError("The device is lost.")), Reply(text="Back.")])
    assert s.type("one", "two") == 0
    assert "The device is lost." in s.notes.getvalue()
    assert "Back." in s.out.getvalue()


def test_retry_asks_the_same_again_and_keeps_both(screen: Callable[..., Screen]) -> None:
    s = screen([Reply(text="First."), Reply(text="Second.")])
    s.type("one", "/retry")
    assert s.client.requests[0].messages == s.client.requests[1].messages
    conversation = s.chat.session.conversation
    assert conversation.path()[-1].text == "Second."
    assert len(conversation.siblings(conversation.path()[-1].id)) == 2


def test_undo_takes_the_last_turn_back(screen: Callable[..., Screen]) -> None:
    s = screen()
    s.type("one", "two", "/undo", "three")
    assert [m["content"] for m in s.client.requests[2].messages or ()] == ["one", "one", "three"]


def test_think_is_passed_on(screen: Callable[..., Screen]) -> None:
    s = screen()
    s.type("/think off", "one", "/think maybe")
    assert s.client.requests[0].thinking is False
    assert "/think on" in s.notes.getvalue()


def test_double_slash_sends_a_slash(screen: Callable[..., Screen]) -> None:
    s = screen()
    s.type("//etc/hosts")
    assert s.client.requests[0].messages == ({"role": "user", "content": "/etc/hosts"},)


def test_an_unknown_command_is_not_sent(screen: Callable[..., Screen]) -> None:
    s = screen()
    s.type("/frobnicate")
    assert not s.client.requests
    assert "/help" in s.notes.getvalue()


def test_quit_leaves(screen: Callable[..., Screen]) -> None:
    s = screen()
    assert s.type("/quit", "never sent") == 0
    assert not s.client.requests
