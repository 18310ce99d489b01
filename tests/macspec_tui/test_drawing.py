"""What is written to the terminal while an answer longer than the window grows: small whole frames, no clearing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import drawn_chat

COLUMNS, ROWS, LINES = 80, 24, 60
BEGIN, END = b"\x1b[?2026h", b"\x1b[?2026l"
#: Clearing the screen, its rest, what scrolled away, or resetting the terminal.
CLEARING = re.compile(rb"\x1b\[[0-3]?J|\x1bc")


def _drawn(folder: Path) -> bytes:
    """Everything the chat writes to a terminal that can show whole frames at once."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    words = [sys.executable, drawn_chat.__file__, str(folder), str(LINES)]
    process = subprocess.Popen(words, stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True)
    os.close(inner)
    drawn, asked = b"", False
    while True:
        ready, _, _ = select.select([outer], [], [], 120)
        if not ready:
            process.kill()
            pytest.fail(f"nothing was drawn for two minutes after {drawn[-500:]!r}")
        try:
            new = os.read(outer, 1 << 16)
        except OSError:
            break
        if not new:
            break
        drawn += new
        if not asked and b"\x1b[?2026$p" in drawn:
            asked = True
            os.write(outer, b"\x1b[?2026;2$y")
    os.close(outer)
    assert process.wait(60) == 0, drawn[-2000:]
    return drawn


@pytest.mark.slow
def test_an_answer_longer_than_the_window_is_drawn_in_small_whole_frames(tmp_path: Path) -> None:
    drawn = _drawn(tmp_path)
    assert f"Line {LINES - 1} ".encode() in drawn
    # One alternate screen from the start to the end, so what was on the terminal before is there again afterwards.
    assert drawn.count(b"\x1b[?1049h") == drawn.count(b"\x1b[?1049l") == 1
    inside = drawn[drawn.index(b"\x1b[?1049h") : drawn.index(b"\x1b[?1049l")]
    assert not CLEARING.search(inside)
    frames = inside.split(BEGIN)[1:]
    assert len(frames) > 5 and all(frame.count(END) == 1 for frame in frames)
    # A full screen with a colour per word is some 10 kB; what flickers elsewhere writes 94 kB.
    assert max(map(len, frames)) < 12_000
    # Text comes inside of frames only: between them the cursor may move.
    between = [re.sub(rb"\x1b\[[\d;?<]*[A-Za-z]", b"", frame.partition(END)[2]) for frame in frames[1:]]
    assert not any(part.strip() for part in between)
