"""What the chat's main states look like: their text in every size, the same in every look, and readable in colour."""

from __future__ import annotations

import re

import pytest

from chat_pictures import contrasts, lines, snapshot
from macspec_tui import screenshots

#: What WCAG 2.1 asks of text.
READABLE = 4.5
SIZES = [pytest.param(size, id=f"{size[0]}x{size[1]}") for size in screenshots.SIZES]
#: Colours of a picture taken without any: rich's window, its default text, dimmed text, and that under a cursor.
GREYS = {"#c5c8c6", "#868887", "#292929", "#676867"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", screenshots.POSES)
async def test_a_screen_is_as_expected(name: str, size: tuple[int, int]) -> None:
    drawn = lines(await screenshots.shoot(name, size, "dark"))
    assert drawn == snapshot(name, size).read_text(encoding="utf-8").splitlines()
    assert all(len(line) <= size[0] for line in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", screenshots.POSES)
async def test_light_and_dark_are_readable_and_differ_in_colour_only(name: str, size: tuple[int, int]) -> None:
    for look in ("dark", "light"):
        svg = await screenshots.shoot(name, size, look)
        assert lines(svg) == snapshot(name, size).read_text(encoding="utf-8").splitlines()
        found = sorted(contrasts(svg), key=lambda entry: entry[0])
        assert found and found[0][0] >= READABLE, found[0]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", screenshots.POSES)
async def test_without_colours_nothing_but_colour_is_missing(name: str, size: tuple[int, int]) -> None:
    svg = await screenshots.shoot(name, size, "no-color")
    assert lines(svg) == snapshot(name, size).read_text(encoding="utf-8").splitlines()
    drawn = svg[svg.index("-matrix") :]
    assert set(re.findall(r"fill: (#\w+)", drawn[: drawn.index("</style>")])) <= GREYS


@pytest.mark.parametrize("look", ["dark", "light"])
async def test_text_is_readable(look: str) -> None:
    found = sorted(contrasts(await screenshots.shoot("answered", (120, 40), look)), key=lambda entry: entry[0])
    assert found and found[0][0] >= READABLE, found[0]


async def test_what_is_chosen_can_be_seen_without_colours() -> None:
    svg = await screenshots.shoot("commands", (80, 24), "no-color")
    styles = dict(re.findall(r"\.[\w-]*-(r\d+) \{ (fill:[^}]*)\}", svg))
    chosen = re.findall(r'<text class="[^"]*-(r\d+)"[^>]*>/system', svg)
    other = re.findall(r'<text class="[^"]*-(r\d+)"[^>]*>/set', svg)
    assert "underline" in styles[chosen[0]] and "underline" not in styles[other[0]]
