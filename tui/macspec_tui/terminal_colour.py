"""Asks the terminal whether its background is light.

OSC 11 asks for the colour; the device attributes (DA1) are asked for right after it. Nearly every terminal answers
DA1, and answers come in order, so one that knows no OSC 11 costs a round trip and not the time-out, and no reply is
left over that could be taken for typing.
"""

from __future__ import annotations

import os
import re
import select
import termios
import time
import tty
from dataclasses import dataclass

#: Seconds a terminal gets to answer; only one that answers nothing at all takes so long.
PATIENCE = 0.4

_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_COLOUR = re.compile(
    rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})[^\x07\x1b]*(\x07|\x1b\\)"
)
_ATTRIBUTES = re.compile(rb"\x1b\[\?[0-9;]*c")


@dataclass(frozen=True, slots=True)
class Background:
    """``light`` is None when the terminal did not say. ``typed`` is what a person typed meanwhile."""

    light: bool | None = None
    typed: str = ""


def ask() -> Background:
    """Ask the controlling terminal; without one nothing is known."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return Background()
    try:
        return ask_on(terminal)
    finally:
        os.close(terminal)


def ask_on(terminal: int, patience: float = PATIENCE) -> Background:
    """Ask the terminal behind an open file; its modes are afterwards what they were."""
    try:
        before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal, termios.TCSANOW)
    except (termios.error, OSError):
        return Background()
    try:
        os.write(terminal, _QUESTION)
        return understand(_replies(terminal, patience))
    except OSError:
        return Background()
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


def understand(data: bytes) -> Background:
    """What a terminal's replies say, and what is left of them when they are taken out."""
    light = None
    if colour := _COLOUR.search(data):
        red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in colour.groups()[:3])
        # ITU-R BT.601 luma of the gamma-coded channels.
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
    typed = _ATTRIBUTES.sub(b"", _COLOUR.sub(b"", data)).decode("utf-8", "ignore")
    return Background(light, typed if "\x1b" not in typed else "")


def _replies(terminal: int, patience: float) -> bytes:
    end, data = time.monotonic() + patience, b""
    while not _ATTRIBUTES.search(data):
        ready, _, _ = select.select([terminal], [], [], max(end - time.monotonic(), 0.0))
        if not ready:
            break
        chunk = os.read(terminal, 4096)
        if not chunk:
            break
        data += chunk
    return data
