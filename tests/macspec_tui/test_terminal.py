"""The real program with the real model in a pseudo-terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]


class Terminal:
    """A tmux session of its own server."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._socket = folder / "tmux"
        command = " ".join([sys.executable, "-m", "macspec", "chat", "--max-tokens", "40", *words])
        environment = {**os.environ, "XDG_DATA_HOME": str(folder)}
        script = f"{command}; echo code=$?; sleep 600"
        self._run("new-session", "-d", "-x", "100", "-y", "30", script, environment=environment)

    def _run(self, *words: str, environment: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words],
            capture_output=True, text=True, env=environment, check=True,
        )  # fmt: skip
        return done.stdout

    def press(self, *keys: str) -> None:
        self._run("send-keys", *keys)
        time.sleep(0.3)

    def shows(self, text: str, seconds: float = 180.0) -> str:
        """Wait until the terminal shows ``text``; returns everything it shows."""
        end = time.monotonic() + seconds
        while text not in (screen := self._run("capture-pane", "-p", "-S", "-200")):
            if time.monotonic() > end:
                pytest.fail(f"{text!r} never appeared in:\n{screen}")
            time.sleep(0.2)
        return screen

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], check=False)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[object]:
    opened: list[Terminal] = []

    def make(*words: str) -> Terminal:
        opened.append(Terminal(tmp_path, *words))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_a_conversation_on_the_full_screen(terminal) -> None:
    window = terminal()
    window.shows("Type a message")
    window.press("Say hello", "C-j", "please", "M-Enter", "now")
    assert "please" in window.shows("now")
    window.press("Enter")
    screen = window.shows("per round", 240)
    assert "▌ please" in screen
    window.press("C-d")
    screen = window.shows("code=0", 60)
    assert "tok/s" in screen and "macspec chat --resume" in screen


def test_stopping_with_ctrl_c_in_plain_lines(terminal) -> None:
    window = terminal("--plain", "--max-tokens", "4000", "--ignore-eos")
    window.shows("You:")
    window.press("Tell me a long story", "Enter")
    window.shows("Answer:")
    window.press("C-c")
    window.shows("stopped)", 120)
    window.press("C-d")
    window.shows("code=0", 60)
