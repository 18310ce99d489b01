"""Key sequences that Textual does not tell apart yet.

Without the kitty keyboard protocol Alt+Enter is an escape character and a carriage return: what Terminal.app sends for
Option+Enter, and tmux for any terminal. Textual 8.2 drops the escape and reports Enter, which would send the message.
Its table of sequences is where a terminal's keys are declared, so that is where this one is added.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


class _MoreKeys(Enum):
    ALT_ENTER = "alt+enter"


def declare_keys() -> None:
    """Let Textual report Alt+Enter. Doing so twice is harmless."""
    table = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    for sequence in ("\x1b\r", "\x1b\n"):
        table.setdefault(sequence, (_MoreKeys.ALT_ENTER,))
