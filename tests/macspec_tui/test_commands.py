"""Recognising and completing commands."""

from __future__ import annotations

import pytest

from macspec.errors import RequestError
from macspec_tui import commands
from macspec_tui.screens.chat_commands import ChatCommands

_VALUES = {"think": lambda words: [] if words else [("on", ""), ("off", ""), ("auto", "")]}


def test_every_command_does_something() -> None:
    for command in commands.COMMANDS:
        assert callable(getattr(ChatCommands, f"do_{command.name}"))


def test_a_command_and_its_arguments() -> None:
    command, rest = commands.parse("/set  temperature 0.7 ")
    assert (command.name, rest) == ("set", "temperature 0.7")


def test_a_beginning_is_enough_when_it_is_clear() -> None:
    assert commands.parse("/ret")[0].name == "retry"
    assert commands.parse("/exit")[0].name == "quit"


@pytest.mark.parametrize(("text", "words"), [("/s", "could be /system"), ("/nope", "/help"), ("/", "/help")])
def test_what_is_no_command_says_what_to_do(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        commands.parse(text)


def test_two_slashes_are_a_message() -> None:
    assert not commands.is_command("//etc")
    assert commands.as_message("//etc") == "/etc"
    assert commands.as_message("plain") == "plain"


def test_names_are_completed() -> None:
    assert [c.insert for c in commands.complete("/th", {})] == ["/think ", "/theme "]
    assert len(commands.complete("/", {})) == len(commands.COMMANDS)


def test_values_are_completed() -> None:
    assert [c.insert for c in commands.complete("/think o", _VALUES)] == ["/think on", "/think off"]
    assert commands.complete("/think off ", _VALUES) == []


@pytest.mark.parametrize("text", ["hello", "//x", "/set\nx", "/think on"])
def test_nothing_to_complete(text: str) -> None:
    assert commands.complete(text, _VALUES) == []
