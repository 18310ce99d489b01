"""Pictures of the chat's main states: ``python -m macspec_tui.screenshots FOLDER`` writes SVG files.

The engine is scripted, so the pictures need no model and are the same everywhere; the numbers in them are invented.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from macspec.request import Event, Finished, GenerationRequest, Round
from macspec.worker.protocol import EngineInfo, EngineStats, LoadProgress
from macspec.worker.scripted import DEFAULT_INFO, Reply, ScriptedClient
from macspec_tui.app import ChatApp
from macspec_tui.history import PromptHistory
from macspec_tui.live import round_ms
from macspec_tui.screens.chat import ChatScreen
from macspec_tui.settings import ChatSettings
from macspec_tui.store import SessionStore

SIZES = ((80, 24), (120, 40), (40, 15))
LOOKS = ("dark", "light", "no-color")

INFO: EngineInfo = replace(
    DEFAULT_INFO,
    model="Qwen3-8B-4bit",
    drafter="Qwen3-8B-DFlash",
    max_context=32_768,
    parameters_bytes=4_600_000_000,
    dtype="4-bit",
    device="Apple M3 Pro",
    ladder=tuple(24.0 + 1.1 * rows + (9.0 if rows > 5 else 0.0) + (6.0 if rows > 10 else 0.0) for rows in range(16)),
)
THOUGHT = "The person wants a function. A generator can be left at any time, so that is better. " * 3
ANSWER = """\
A generator gives the numbers one by one:

```python
def fibonacci(limit: int) -> Iterator[int]:
    \"\"\"Yield the Fibonacci numbers below ``limit``.\"\"\"
    a, b = 0, 1
    while a < limit:
        yield a
        a, b = b, a + b  # the next pair
```

What to know about it:

1. It holds **two numbers**, whatever the limit.
2. `list(fibonacci(50))` ends with 34.

| limit | numbers |
|------:|--------:|
| 10    | 7       |
| 100   | 12      |
"""
WIDE = "Wide characters keep their columns: 日本語 · 한국어 · नमस्ते · שלום · é · ⏺ · end."


class PosedClient(ScriptedClient):
    """A scripted engine whose rounds vary like real ones and whose memory is known."""

    async def stats(self) -> EngineStats:
        base = await super().stats()
        return replace(base, memory_active=5_100_000_000, memory_peak=5_600_000_000, prefix_cache_bytes=310_000_000)

    async def submit(self, request: GenerationRequest) -> AsyncIterator[Event]:
        number, tokens, spent = 0, 0, 0.0
        async for event in super().submit(request):
            if isinstance(event, Round):
                number += 1
                event = _posed(event, number)
                tokens, spent = tokens + event.committed, spent + round_ms(event)
            elif isinstance(event, Finished):
                stats = replace(event.stats, generation_tps=1000 * tokens / spent, peak_memory=5_600_000_000)
                event = replace(event, stats=stats)
            yield event


def _posed(event: Round, number: int) -> Round:
    if number % 17 in (15, 16):
        return replace(event, drafted=0, verified=0, accepted=0, reason="parked: plain is faster", draft_ms=0.0)
    verified = max(event.accepted, round(5 + 3 * math.sin(number / 3)))
    return replace(
        event,
        drafted=15,
        verified=verified,
        reason="buys while survival pays",
        draft_ms=4.0,
        verify_ms=24.0 + 2.0 * verified,
    )


Pose = Callable[[Any, ChatScreen], Awaitable[None]]


async def _say(pilot: Any, screen: ChatScreen, text: str) -> None:
    screen.prompt.put(text)
    await pilot.press("enter")
    await _until(pilot, lambda: screen.turn is None and not screen.engine_loading and not screen.waiting)


async def _until(pilot: Any, done: Callable[[], bool], tries: int = 400) -> None:
    # The pilot's own pause waits for every widget, also for one that streaming has just replaced.
    for _ in range(tries):
        await asyncio.sleep(0.02)
        if done():
            break
    # One more flush of text and numbers.
    await asyncio.sleep(0.4)
    screen = pilot.app.chat
    screen.tick()
    await pilot.pause()


async def _answered(pilot: Any, screen: ChatScreen) -> None:
    await _say(pilot, screen, "Fibonacci numbers in Python, please")


async def _answering(pilot: Any, screen: ChatScreen) -> None:
    screen.prompt.put("Fibonacci numbers in Python, please")
    await pilot.press("enter")
    await _until(pilot, lambda: len(screen.live.rounds) >= 44)
    screen.prompt.put("And as a list?")
    await pilot.press("enter")
    await _until(pilot, lambda: bool(screen.waiting))


async def _thinking(pilot: Any, screen: ChatScreen) -> None:
    screen.prompt.put("Fibonacci numbers in Python, please")
    await pilot.press("enter")
    await _until(pilot, lambda: len(screen.live.rounds) >= 12)


async def _runs(pilot: Any, screen: ChatScreen) -> None:
    await _answered(pilot, screen)
    await pilot.press("ctrl+o")
    await pilot.pause()
    screen.app.clear_notifications()


async def _completing(pilot: Any, screen: ChatScreen) -> None:
    await _until(pilot, lambda: not screen.engine_loading)
    screen.prompt.put("/s")
    await pilot.pause()


async def _loading(pilot: Any, screen: ChatScreen) -> None:
    await pilot.pause(0.1)


async def _help(pilot: Any, screen: ChatScreen) -> None:
    await _until(pilot, lambda: not screen.engine_loading)
    await pilot.press("f1")
    await pilot.pause()


async def _sessions(pilot: Any, screen: ChatScreen) -> None:
    for text in ("How do tides work?", "Write a haiku about rain", "Translate: good morning → 日本語"):
        await _say(pilot, screen, text)
        await screen.commands.run("/new")
    await screen.commands.run("/sessions")
    await pilot.pause()


async def _context(pilot: Any, screen: ChatScreen) -> None:
    await screen.commands.run("/system Answer briefly.")
    await _say(pilot, screen, WIDE)
    await screen.commands.run("/context")
    await screen.commands.run("/stats")
    await screen.commands.run("/set temperature 900")
    screen.conversation.follow()
    await pilot.pause(0.2)


_LONG = Reply(text=ANSWER, thinking=THOUGHT, prompt_tokens=3100, cached_tokens=2900)

#: Script and pose of every picture by name.
POSES: dict[str, tuple[Reply, Pose]] = {
    "answered": (_LONG, _answered),
    "answering": (_LONG, _answering),
    "thinking": (_LONG, _thinking),
    "runs": (Reply(text=ANSWER), _runs),
    "commands": (Reply(text=ANSWER), _completing),
    "loading": (Reply(text=ANSWER), _loading),
    "help": (Reply(text=ANSWER), _help),
    "sessions": (Reply(text=ANSWER), _sessions),
    "notes": (Reply(text=WIDE), _context),
}
#: The round before which an answer is held for its picture.
_HELD_AT = {"answering": 44, "thinking": 12}


async def shoot(name: str, size: tuple[int, int], look: str) -> str:
    """The SVG of one pose."""
    reply, pose = POSES[name]
    gate = asyncio.Event()
    if name in _HELD_AT:
        reply = replace(reply, gates={_HELD_AT[name]: gate})
    options: dict[str, Any] = {}
    if name == "loading":
        options["load_gate"] = asyncio.Event()
        options["load_steps"] = (LoadProgress("reading weights", 2_100_000_000, 4_600_000_000, "of Qwen3-8B-4bit"),)
    with tempfile.TemporaryDirectory() as folder, _environment(look):
        store = SessionStore(Path(folder) / "sessions")
        app = ChatApp(
            PosedClient(reply, info=INFO, **options),
            store,
            store.new(),
            ChatSettings(),
            history=PromptHistory(Path(folder) / "history"),
            theme=None if look == "no-color" else look,
        )
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await pose(pilot, app.chat)
            svg = app.export_screenshot(title=f"macspec chat · {name}")
            app.chat.waiting.clear()
            gate.set()
            await app.action_quit()
        app.chat.session.close()
    return svg


class _environment:
    """Sets NO_COLOR for one look only."""

    def __init__(self, look: str) -> None:
        self._value = "1" if look == "no-color" else None

    def __enter__(self) -> None:
        self._before = os.environ.pop("NO_COLOR", None)
        if self._value is not None:
            os.environ["NO_COLOR"] = self._value

    def __exit__(self, *_: object) -> None:
        os.environ.pop("NO_COLOR", None)
        if self._before is not None:
            os.environ["NO_COLOR"] = self._before


async def _all(folder: Path, names: list[str]) -> None:
    for name in names or list(POSES):
        for size in SIZES:
            for look in LOOKS:
                path = folder / f"{name}-{size[0]}x{size[1]}-{look}.svg"
                path.write_text(await shoot(name, size, look), encoding="utf-8")
                print(path)


def main(arguments: list[str]) -> int:
    """Write every picture, or only the named ones, into a folder."""
    if not arguments:
        print(f"usage: python -m macspec_tui.screenshots FOLDER [{'|'.join(POSES)} ...]", file=sys.stderr)
        return 2
    unknown = [name for name in arguments[1:] if name not in POSES]
    if unknown:
        print(f"There is no picture {unknown[0]}; there are {', '.join(POSES)}.", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_all(folder, arguments[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
