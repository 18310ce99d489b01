"""Copying: the native tool, then the terminal, then the truth."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from macspec_tui.clipboard import OSC52_LIMIT, Copied, copy


class Desk:
    """A machine to copy on."""

    def __init__(self, *tools: str, code: int = 0, error: Exception | None = None) -> None:
        self.tools, self.code, self.error = tools, code, error
        self.ran: list[tuple[Sequence[str], bytes]] = []
        self.environ: Mapping[str, str] = {}
        self.written: list[str] = []

    def run(self, command: Sequence[str], data: bytes, environ: Mapping[str, str]) -> int:
        self.ran.append((command, data))
        self.environ = environ
        if self.error is not None:
            raise self.error
        return self.code

    def copy(self, text: str, platform: str = "darwin", **environ: str) -> Copied:
        which = lambda name: f"/usr/bin/{name}" if name in self.tools else None  # noqa: E731  # one line of a test
        return copy(text, self.written.append, environ=environ, platform=platform, which=which, run=self.run)


def test_a_mac_copies_with_pbcopy_in_utf8() -> None:
    desk = Desk("pbcopy")
    assert desk.copy("日本語").ok
    assert desk.ran == [(["pbcopy"], "日本語".encode())]
    assert desk.environ["LC_CTYPE"] == "UTF-8"
    assert not desk.written


def test_wayland_and_x11() -> None:
    desk = Desk("wl-copy", "xclip")
    assert desk.copy("x", "linux", WAYLAND_DISPLAY="w", DISPLAY=":0").ok
    assert desk.copy("x", "linux", DISPLAY=":0").ok
    assert [command[0] for command, _ in desk.ran] == ["wl-copy", "xclip"]


def test_success_is_reported_only_when_the_tool_succeeded() -> None:
    desk = Desk("pbcopy", code=1)
    result = desk.copy("x", TERM_PROGRAM="Apple_Terminal")
    assert not result.ok and "pbcopy ended with code 1" in result.message and "/export" in result.message
    assert not desk.written


@pytest.mark.parametrize("error", [OSError("gone"), subprocess.TimeoutExpired("pbcopy", 3)])
def test_a_tool_that_fails_leaves_it_to_the_terminal(error: Exception) -> None:
    desk = Desk("pbcopy", error=error)
    result = desk.copy("x", TERM_PROGRAM="iTerm.app")
    assert result.ok and "OSC 52" in result.message
    assert desk.written == ["\x1b]52;c;eA==\x07"]


def test_a_remote_session_uses_the_terminal_in_front_of_the_person() -> None:
    desk = Desk("pbcopy")
    desk.copy("x", SSH_CONNECTION="1.2.3.4")
    assert not desk.ran and len(desk.written) == 1


def test_tmux_passes_the_sequence_on() -> None:
    desk = Desk()
    desk.copy("x", TMUX="/tmp/tmux", TERM="screen-256color")
    assert desk.written == ["\x1bPtmux;\x1b\x1b]52;c;eA==\x07\x1b\\"]


def test_screen_passes_the_sequence_on() -> None:
    desk = Desk()
    desk.copy("x", TERM="screen")
    assert desk.written == ["\x1bP\x1b]52;c;eA==\x07\x1b\\"]


def test_terminal_app_alone_cannot_copy() -> None:
    result = Desk().copy("x", TERM_PROGRAM="Apple_Terminal")
    assert not result.ok and "terminal cannot copy" in result.message


def test_too_much_for_the_terminal() -> None:
    desk = Desk()
    assert not desk.copy("x" * OSC52_LIMIT).ok
    assert not desk.written
    assert desk.copy("x" * 1000).ok
    assert base64.b64decode(desk.written[0][7:-1]) == b"x" * 1000


def test_nothing_to_copy() -> None:
    assert not Desk("pbcopy").copy("").ok
