"""Reads a picture of a terminal back: its text, and how far every word stands out from what is behind it.

``python tests/chat_pictures.py`` writes the expected screens anew; look at the difference before keeping it.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

from macspec_tui import screenshots

SNAPSHOTS = Path(__file__).parent / "macspec_tui" / "snapshots"
#: Cell size and the first base line of rich's pictures, in their units.
_WIDTH, _HEIGHT, _BASE = 12.2, 24.4, 20.0

_TEXT = re.compile(
    r'<text class="[^"]*-(r\d+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)" clip-path="[^"]*">([^<]*)</text>'
)
_FILL = re.compile(r"\.[\w-]*-(r\d+) \{ fill: ([^; }]+)")
_RECT = re.compile(r'<rect fill="(#\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"')
_WORD = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one style on one line; colours as ``#rrggbb``, an empty background is the terminal's own."""

    row: int
    column: int
    text: str
    colour: str
    background: str


def pieces(svg: str) -> Iterator[Piece]:
    """All pieces of text in a picture."""
    fills = dict(_FILL.findall(svg))
    areas = [(fill, *map(float, numbers)) for fill, *numbers in _RECT.findall(svg)]
    for style, x_text, y_text, _, text in _TEXT.findall(svg):
        x, y = float(x_text) + 1, float(y_text) - 5
        behind = [fill for fill, left, top, w, h in areas if left <= x < left + w and top <= y < top + h]
        yield Piece(
            round((float(y_text) - _BASE) / _HEIGHT),
            round(float(x_text) / _WIDTH),
            html.unescape(text).replace("\xa0", " "),
            fills[style],
            behind[-1] if behind else "",
        )


def lines(svg: str) -> list[str]:
    """The text of a picture, line by line, without blanks at the ends."""
    found: dict[int, str] = {}
    for piece in sorted(pieces(svg), key=lambda piece: (piece.row, piece.column)):
        line = found.get(piece.row, "")
        found[piece.row] = line + " " * (piece.column - cell_len(line)) + piece.text
    return [found.get(row, "").rstrip() for row in range(max(found) + 1)]


def contrasts(svg: str) -> Iterator[tuple[float, Piece]]:
    """Pieces with words in them and their contrast ratio (WCAG 2.1, 1 to 21)."""
    for piece in pieces(svg):
        if _WORD.search(piece.text) and piece.background:
            first, second = sorted((_luminance(piece.colour), _luminance(piece.background)), reverse=True)
            yield (first + 0.05) / (second + 0.05), piece


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def snapshot(name: str, size: tuple[int, int]) -> Path:
    """The file with the expected text of a screen."""
    return SNAPSHOTS / f"{name}-{size[0]}x{size[1]}.txt"


async def _write() -> None:
    for name in screenshots.POSES:
        for size in screenshots.SIZES:
            svg = await screenshots.shoot(name, size, "dark")
            snapshot(name, size).write_text("\n".join(lines(svg)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(_write())
