"""Runs the whole chat, its screen drawn into memory and its engine scripted, and kills it at a random moment.

``python killed_chat.py FOLDER COUNT SEED`` keeps the sessions of run N in ``FOLDER/N`` and prints a JSON line per run:
the numbers of the turns whose end the person saw. Forked and not started, because starting takes most of the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from macspec.worker.scripted import DEFAULT_INFO, Reply, ScriptedClient
from macspec_tui.app import ChatApp
from macspec_tui.history import PromptHistory
from macspec_tui.settings import ChatSettings
from macspec_tui.store import SessionStore

#: Turns waited for at most before the one that is cut off.
TURNS = 2
#: Long enough for several writes of the operating system.
FILLER = " word" * 2000


def answer(number: int) -> str:
    """What the script answers in turn ``number``."""
    return f"answer {number}{FILLER}"


def question(number: int) -> str:
    """What is said in turn ``number``."""
    return f"question {number}{FILLER}"


async def chat(folder: Path, told: int) -> None:
    """Talk without end; each turn that has ended is told to the parent."""
    script = [Reply(text=answer(number), per_round=200, delay=0.001) for number in range(200)]
    store = SessionStore(folder)
    history = PromptHistory(folder / "history")
    client = ScriptedClient(script, info=replace(DEFAULT_INFO, max_context=10**7))
    app = ChatApp(client, store, store.new(), ChatSettings(), history=history, theme="dark")

    async def talk() -> None:
        while not app.chat.is_mounted or app.chat.engine_loading:
            await asyncio.sleep(0.001)
        for number in range(200):
            await app.chat.submit(question(number))
            if number == 0:
                os.write(told, b"begun\n")
            while app.chat.turn is not None:
                await asyncio.sleep(0.001)
            os.write(told, f"{number}\n".encode())

    task = asyncio.create_task(talk())
    await app.run_async(headless=True)
    await task


def run(folder: Path, rng: random.Random, lasts: float) -> tuple[list[int], float]:
    """One run: start, wait for up to `TURNS` turns to end, then a random part of ``lasts`` seconds, and kill.

    Returns the turns that had ended, and the seconds the newest one took: a turn takes as long as the machine is busy,
    so that is what the next run's moment is drawn from.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        asyncio.run(chat(folder, writer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert lines.readline() == "begun\n"
        ended: list[int] = []
        for _ in range(rng.randrange(TURNS + 1)):
            since = time.monotonic()
            ended.append(int(lines.readline()))
            lasts = time.monotonic() - since
        time.sleep(rng.random() * 1.2 * lasts)
        os.kill(child, signal.SIGKILL)
        ended += [int(line) for line in lines]
    os.waitpid(child, 0)
    return ended, lasts


if __name__ == "__main__":
    generator, duration = random.Random(int(sys.argv[3])), 0.2
    for attempt in range(int(sys.argv[2])):
        seen, duration = run(Path(sys.argv[1]) / str(attempt), generator, duration)
        print(json.dumps(seen), flush=True)
