"""What growing text costs: one layout per update, rarer updates where they are dear, no full search for garbage."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from textual._styles_cache import StylesCache
from textual.app import App, ComposeResult
from textual.widget import Widget

import macspec_tui
from macspec_tui import garbage
from macspec_tui.widgets.answer import FLUSH_SECONDS, FLUSH_SHARE, AnswerView, pause
from macspec_tui.widgets.side_panel import Section


def test_dear_updates_are_rarer_within_bounds() -> None:
    least, most = FLUSH_SECONDS
    assert pause(0.0) == least and pause(10.0) == most
    between = (least + most) / 2
    assert pause(between * FLUSH_SHARE) == pytest.approx(between)


@contextlib.asynccontextmanager
async def _shown(widget: Widget) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Show one widget alone; gives a function that counts the layouts of the screen since it was last called."""

    class Alone(App[None]):
        CSS_PATH = Path(macspec_tui.__file__).parent / "chat.tcss"

        def compose(self) -> ComposeResult:
            yield widget

    app = Alone()
    layouts: list[object] = []
    async with app.run_test(size=(60, 20)) as pilot:

        async def count() -> int:
            before = -1
            while before != len(layouts):
                before = len(layouts)
                await asyncio.sleep(0.05)
                await pilot.pause()
            layouts.clear()
            return before

        app.screen.screen_layout_refresh_signal.subscribe(app.screen, layouts.append)
        await count()
        yield count


@pytest.mark.parametrize("start", ["```python\nx = 1\n", "Some words, "], ids=["code", "prose"])
async def test_new_lines_cost_one_layout(start: str) -> None:
    view = AnswerView()
    async with _shown(view) as layouts:
        view.append(start, "answer")
        await view.flush()
        await layouts()
        height = view.size.height
        view.append("y = 2\nand more " * 10, "answer")
        await view.flush()
        assert await layouts() == 1 and view.size.height > height
        view.append("an end", "answer")
        await view.flush()
        assert await layouts() == 1


async def test_numbers_that_change_cost_no_layout() -> None:
    section = Section("speed", "Speed")
    async with _shown(section) as layouts:
        section.show(["120.5 tok/s", "▁▂"])
        await layouts()
        section.show(["121.0 tok/s", "▂▃"])
        assert await layouts() == 0 and "121.0 tok/s" in str(section.visual)
        section.show(["121.0 tok/s", "▂▃", "a third line"])
        assert await layouts() == 1 and section.size.height == 4
        section.show(["121.0 tok/s", "▂▃", "a third line " * 8])
        assert await layouts() == 1 and section.size.height == 5
        section.show(["121.0 tok/s", "▂▃", "a third line"])
        assert await layouts() == 1 and section.size.height == 4


@pytest.fixture
def prepared() -> Iterator[tuple[int, int, int]]:
    """Python's own thresholds, while the chat's are in force."""
    before = gc.get_threshold()
    garbage.prepare()
    yield before
    gc.unfreeze()
    gc.set_threshold(*before)


def test_garbage_is_looked_for_when_told(prepared: tuple[int, int, int]) -> None:
    class Node:
        other: Node

    assert gc.get_threshold() == (*prepared[:2], garbage.FULL_AFTER)
    first, second = Node(), Node()
    first.other, second.other = second, first
    gone = weakref.ref(first)
    del first, second
    garbage.collect()
    assert gone() is None


@pytest.mark.usefixtures("prepared")
async def test_removed_widgets_are_let_go() -> None:
    view, held = AnswerView(), []
    async with _shown(view) as layouts:
        for _ in range(6):
            view.append("Some words.\n\n```python\nx = 1\n```\n", "answer")
            await view.flush()
            await layouts()
            shown = len(list(view.walk_children()))
            await view.restart()
            await layouts()
            garbage.collect()
            held.append(sum(isinstance(found, StylesCache) for found in gc.get_objects()))
    # The newest may still be referred to; earlier ones are gone.
    assert shown >= 4 and held[-1] - held[1] < shown
