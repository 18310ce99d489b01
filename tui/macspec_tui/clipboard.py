"""Copies text by whatever works here, and says so only when it did.

A native tool first (``pbcopy``, ``wl-copy``, ``xclip``, ``xsel``) unless the session is remote, where it would fill
the wrong machine's clipboard; then the terminal's own OSC 52 sequence, which Terminal.app ignores and nobody confirms;
else a sentence with the reason.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: Terminals cut longer sequences; tmux and xterm are the tightest.
OSC52_LIMIT = 74_994
_SECONDS = 3.0

Run = Callable[[Sequence[str], bytes, Mapping[str, str]], int]


@dataclass(frozen=True, slots=True)
class Copied:
    """How copying went, as a sentence."""

    ok: bool
    message: str


def copy(
    text: str,
    write: Callable[[str], None],
    *,
    environ: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
    which: Callable[[str], str | None] = shutil.which,
    run: Run | None = None,
) -> Copied:
    """Copy ``text``; ``write`` sends a sequence to the terminal."""
    if not text:
        return Copied(False, "There is nothing to copy.")
    remote = bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))
    what = f"{len(text):,} characters" if "\n" in text or len(text) > 40 else f"“{text}”"
    failures: list[str] = []
    data = text.encode("utf-8", "replace")
    if not remote:
        for command in _native(environ, platform):
            if which(command[0]) is None:
                continue
            try:
                code = (run or _run)(command, data, {**environ, "LC_CTYPE": "UTF-8"})
            except (OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{command[0]} failed ({type(error).__name__})")
                continue
            if code == 0:
                return Copied(True, f"Copied {what}.")
            failures.append(f"{command[0]} ended with code {code}")
    why = "; ".join(failures)
    if environ.get("TERM_PROGRAM") == "Apple_Terminal":
        return Copied(False, _sorry(why or "this terminal cannot copy for a remote program"))
    encoded = base64.b64encode(data).decode("ascii")
    if len(encoded) > OSC52_LIMIT:
        return Copied(False, _sorry(why or f"{len(data):,} bytes are too many for the terminal's copy sequence"))
    write(osc52(encoded, environ))
    return Copied(True, f"Sent {what} to the terminal’s clipboard; if nothing arrives, it does not allow OSC 52.")


def osc52(encoded: str, environ: Mapping[str, str]) -> str:
    """The terminal sequence that sets the clipboard, wrapped so that tmux or screen pass it on."""
    sequence = f"\x1b]52;c;{encoded}\x07"
    if environ.get("TMUX"):
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\"
    if environ.get("TERM", "").startswith("screen"):
        return f"\x1bP{sequence}\x1b\\"
    return sequence


def _native(environ: Mapping[str, str], platform: str) -> list[list[str]]:
    if platform == "darwin":
        return [["pbcopy"]]
    commands: list[list[str]] = []
    if environ.get("WAYLAND_DISPLAY"):
        commands.append(["wl-copy"])
    if environ.get("DISPLAY"):
        commands += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return commands


def _run(command: Sequence[str], data: bytes, environ: Mapping[str, str]) -> int:
    # xclip stays in the background to serve the clipboard, so its output must not be a pipe that is waited for.
    done = subprocess.run(
        command,
        input=data,
        env=dict(environ),
        timeout=_SECONDS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode


def _sorry(why: str) -> str:
    return f"Not copied: {why}. Use /export to write it to a file, or select it with the mouse."
