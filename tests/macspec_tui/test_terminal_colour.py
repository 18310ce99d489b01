"""Asking a terminal for its background: every answer, none, and what the person types meanwhile."""

from __future__ import annotations

import os
import pty
import termios
import threading
import time
import tty
from collections.abc import Iterator

import pytest

from macspec_tui.terminal_colour import Background, ask, ask_on, understand

ATTRIBUTES = b"\x1b[?62;22c"


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The terminal's own side and the program's side."""
    outer, inner = pty.openpty()
    tty.setraw(outer)
    yield outer, inner
    os.close(outer)
    os.close(inner)


def _answering(outer: int, reply: bytes) -> threading.Thread:
    def answer() -> None:
        asked = b""
        while b"\x1b[c" not in asked:
            asked += os.read(outer, 100)
        os.write(outer, reply)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("reply", "light"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\" + ATTRIBUTES, True),
        (b"\x1b]11;rgb:1d1d/1f1f/2121\x07" + ATTRIBUTES, False),
        (b"\x1b]11;rgb:fd/f6/e3\x1b\\" + ATTRIBUTES, True),
        (b"\x1b]11;rgba:0000/2b2b/3636/ffff\x1b\\" + ATTRIBUTES, False),
        (ATTRIBUTES, None),
        (b"\x1b]11;nonsense\x1b\\" + ATTRIBUTES, None),
    ],
)
def test_answers(terminal: tuple[int, int], reply: bytes, light: bool | None) -> None:
    outer, inner = terminal
    before = termios.tcgetattr(inner)
    thread = _answering(outer, reply)
    assert ask_on(inner) == Background(light)
    thread.join()
    assert termios.tcgetattr(inner) == before


def test_a_terminal_without_an_answer_is_not_waited_for_long(terminal: tuple[int, int]) -> None:
    began = time.monotonic()
    assert ask_on(terminal[1], patience=0.05) == Background()
    assert time.monotonic() - began < 60


def test_a_terminal_that_was_closed(terminal: tuple[int, int]) -> None:
    outer, inner = os.pipe()
    os.close(outer)
    assert ask_on(inner) == Background()
    os.close(inner)


def test_what_is_typed_meanwhile_is_not_lost(terminal: tuple[int, int]) -> None:
    thread = _answering(terminal[0], "Hé".encode() + b"\x1b]11;rgb:0/0/0\x1b\\llo" + ATTRIBUTES)
    assert ask_on(terminal[1]) == Background(False, "Héllo")
    thread.join()


def test_keys_are_not_taken_for_text() -> None:
    assert understand(b"\x1b[A" + ATTRIBUTES) == Background()


def test_without_a_terminal_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(6, "No such device or address")

    monkeypatch.setattr(os, "open", refuse)
    assert ask() == Background()


async def test_the_theme_follows_the_background(open_chat) -> None:
    for light, theme in ((True, "macspec-light"), (False, "macspec-dark"), (None, "macspec-dark")):
        async with open_chat(theme=None, background=Background(light)) as chat:
            assert chat.app.theme == theme
            chat.app.use_theme("light")
            chat.app.use_theme("auto")
            assert chat.app.theme == theme


async def test_what_was_typed_before_the_screen_appeared_is_in_the_prompt(open_chat) -> None:
    async with open_chat(background=Background(None, "Hello\r")) as chat:
        assert chat.prompt.text == "Hello\n" and not chat.texts
