"""Makes text from a model or the clipboard safe to show in a terminal.

Control characters can move the cursor, change the title or write to the clipboard, so they never reach the terminal:
their visible pictures do. Every character is replaced on its own, hence streamed pieces need no state.
"""

from __future__ import annotations

_PICTURES: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}
_PICTURES[0x0A] = "\n"
_PICTURES[0x09] = "\t"
# Carriage returns are dropped: with a line feed they are one line end, alone they overwrite the line.
_PICTURES[0x0D] = None
_PICTURES[0x7F] = "␡"
# C1 controls: 8-bit forms of the same escape sequences.
_PICTURES.update(dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}"))
# Right-to-left text needs neither: these force an order on other text and can disguise it.
_PICTURES.update(dict.fromkeys((0x202D, 0x202E), "\N{REPLACEMENT CHARACTER}"))
_PICTURES.update(dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}"))

_PASTED: dict[int, str | None] = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}
_PASTED.update(dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}"))


def for_display(text: str) -> str:
    """``text`` with control characters made visible; line feeds and tabs stay. Its length may change."""
    return text.translate(_PICTURES)


def pasted(text: str) -> str:
    """``text`` as a person meant it: one kind of line end, no control characters, no lone surrogates."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_PASTED)
