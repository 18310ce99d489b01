"""What the terminal chat costs: the engine, the processor, the person who types; memory, opening and starting.

    python benchmarks/chat.py stream         # a scripted engine at 150 tokens/s: engine steps with and without the chat
    python benchmarks/chat.py real           # the embedded model: tokens/s in the chat against `macspec generate`
    python benchmarks/chat.py open           # a session of 200 turns: time to its first picture, widgets, memory
    python benchmarks/chat.py start          # from starting `macspec chat` to a prompt that can be typed in

The chat runs in a pseudo-terminal of 120 x 40 as a person has it; what it draws is read and thrown away. ``stream``
types a character every 0.2 s and waits until the terminal shows it. The scripted engine is a process of its own whose
step is 5.6 ms of waiting, as for a device, and 1 ms of Python.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from macspec.request import Event, Finished, GenerationRequest, GenerationStats, Round, Started, Text, TokenInfo
from macspec.worker.process_client import ProcessClient, ProcessOptions
from macspec.worker.protocol import EngineOptions
from macspec.worker.scripted import DEFAULT_INFO, Reply, ScriptedClient, pieces

ROOT = Path(__file__).resolve().parent.parent
#: Seconds a scripted step waits and computes.
WAIT, COMPUTE = 0.0056, 0.001
TOKENS = 3000
PROMPT = "Write a Python class for a bank account with deposit, withdraw and a history, and explain every method."


def code_heavy(tokens: int) -> str:
    """Markdown of ``tokens`` scripted tokens, most of it code."""
    block = "Some **text** about `thing{i}` and more words to read here.\n\n```python\ndef f{i}(a, b):\n"
    lines = "".join(f"    x{n} = a + b * {n}  # comment {n}\n" for n in range(25))
    text = "".join(
        block.format(i=number) + lines + "    return x1\n```\n\n- item one\n- item two with `code`\n\n"
        for number in range(tokens // 150)
    )
    return "".join(pieces(text)[:tokens])


class PlayingEngine:
    """Plays the text one token per step, each as long as a step on a device might take."""

    @classmethod
    def load(cls, model: str | None = None, drafter: str | None = None, **_: Any) -> PlayingEngine:
        return cls()

    def info(self) -> dict[str, Any]:
        return {"model": "played/model", "drafter": "played/drafter", "max_context": 32_768, "max_depth": 15}

    def memory(self) -> dict[str, int]:
        return {"active": 1 << 30, "peak": 1 << 30}

    def tokenize(self, request: GenerationRequest) -> list[int]:
        return [0]

    def generate(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        yield Started(prompt_tokens=1, seed=1)
        begin, said = time.perf_counter(), 0
        for piece in pieces(code_heavy(TOKENS)):
            time.sleep(WAIT)
            until = time.perf_counter() + COMPUTE
            while time.perf_counter() < until:
                pass
            said += 1
            yield Round(drafted=15, verified=4, accepted=0, committed=1, verify_ms=6.6, reason="rate")
            yield Text(text=piece, tokens=(TokenInfo(id=1, text=piece),))
            if cancelled():
                break
        rate = said / (time.perf_counter() - begin)
        stats = GenerationStats(generation_tokens=said, rounds=said, generation_tps=rate, prompt_tokens=1)
        yield Finished(reason="stop", stats=stats)


def playing_client() -> ProcessClient:
    """The scripted engine in a process."""
    process = ProcessOptions(factory="benchmarks.chat:PlayingEngine", environment={"PYTHONPATH": str(ROOT)})
    return ProcessClient(EngineOptions(), process=process)


async def alone() -> float:
    """Steps per second of the scripted engine with a reader that does nothing."""
    client = playing_client()
    await client.start()
    rate = 0.0
    async for event in client.submit(GenerationRequest(messages=({"role": "user", "content": "go"},))):
        if isinstance(event, Finished):
            rate = event.stats.generation_tps
    await client.close()
    return rate


async def in_the_chat(client: Any, out: Path, text: str, **settings: str) -> None:
    """Run the chat in this terminal for one answer and write what it cost to ``out``."""
    from macspec_tui.app import ChatApp
    from macspec_tui.settings import ChatSettings
    from macspec_tui.store import SessionStore

    chosen = ChatSettings()
    for name, value in settings.items():
        chosen = chosen.set(name, value)
    store = SessionStore(out.parent / "sessions")
    app = ChatApp(client, store, store.new(), chosen, theme="dark")

    async def ask() -> None:
        screen = app.chat
        while not screen.is_mounted or screen.engine_loading:
            await asyncio.sleep(0.02)
        out.with_suffix(".ready").touch()
        cpu, wall = time.process_time(), time.perf_counter()
        await screen.submit(text)
        while screen.turn is not None:
            await asyncio.sleep(0.05)
        spent, lasted = time.process_time() - cpu, time.perf_counter() - wall
        last = screen.session.conversation.last("assistant")
        stats = last.stats.to_wire() if last is not None and last.stats is not None else {}
        out.write_text(json.dumps({"cpu": spent / lasted, "seconds": lasted, "stats": stats}))
        await app.action_quit()

    task = asyncio.create_task(ask())
    await app.run_async()
    await task
    await client.close()


class Terminal:
    """A pseudo-terminal of 120 x 40 with a program in it."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "XDG_DATA_HOME": str(folder)}
        environment["PYTHONPATH"] = str(ROOT)
        self.process = subprocess.Popen(
            words, stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True
        )
        os.close(inner)

    def read(self, seconds: float) -> bytes:
        """What is drawn within this time."""
        ready, _, _ = select.select([self.outer], [], [], max(seconds, 0))
        try:
            return os.read(self.outer, 1 << 16) if ready else b""
        except OSError:
            return b""

    def close(self) -> None:
        self.process.wait()
        os.close(self.outer)


def run_in_terminal(mode: str, folder: Path, *, typing: bool) -> tuple[dict[str, Any], list[float]]:
    """The chat's own figures, and the seconds from every key to its character on the terminal."""
    out = folder / f"{mode}.json"
    terminal = Terminal([sys.executable, "-m", "benchmarks.chat", "child", "--mode", mode, "--out", str(out)], folder)
    delays: list[float] = []
    number, sent, wanted, tail = 0, 0.0, b"", b""
    while terminal.process.poll() is None:
        now = time.perf_counter()
        if typing and out.with_suffix(".ready").exists() and not wanted and now - sent > 0.2:
            # Every character once, so that its drawing is told apart from everything else.
            wanted, sent, number = chr(0x4E00 + number).encode(), now, number + 1
            os.write(terminal.outer, wanted)
            tail = b""
        tail = (tail + terminal.read(0.02))[-(1 << 17) :]
        if wanted and wanted in tail:
            delays.append(time.perf_counter() - sent)
            wanted = b""
        if number > 300:
            typing = False
    terminal.close()
    return json.loads(out.read_text()), delays


def stream(repeats: int) -> None:
    """Steps per second alone and with the chat, in turn; the chat's processor time and the delay of keys."""
    rates: dict[str, list[float]] = {"alone": [], "chat": []}
    for _ in range(repeats):
        rates["alone"].append(asyncio.run(alone()))
        with tempfile.TemporaryDirectory() as folder:
            values, delays = run_in_terminal("stream", Path(folder), typing=True)
        rates["chat"].append(values["stats"]["generation_tps"])
        delays.sort()
        print(
            f"{values['stats']['generation_tokens']} tokens, chat {100 * values['cpu']:.0f} % of a core, keys shown "
            f"after {1000 * statistics.median(delays):.0f} ms (median of {len(delays)}), "
            f"{1000 * delays[int(0.95 * len(delays))]:.0f} ms (95 %)"
        )
    first, second = statistics.mean(rates["alone"]), statistics.mean(rates["chat"])
    print(f"engine steps/s: alone {first:.1f}, with the chat {second:.1f}, ratio {second / first:.3f}")


def real(tokens: int, repeats: int) -> None:
    """The embedded model: `macspec generate` and the chat in turn, same prompt, same depth."""
    rates: dict[str, list[float]] = {"generate": [], "chat": []}
    words = [sys.executable, "-m", "macspec", "generate", PROMPT, "--json", "--depth", "3", "--max-tokens", str(tokens)]
    for _ in range(repeats):
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        rates["generate"].append(json.loads(done.stdout)["stats"]["generation_tps"])
        with tempfile.TemporaryDirectory() as folder:
            values, _ = run_in_terminal(f"real-{tokens}", Path(folder), typing=False)
        rates["chat"].append(values["stats"]["generation_tps"])
        print(f"generate {rates['generate'][-1]:.2f} tok/s, chat {rates['chat'][-1]:.2f} tok/s")
    best, chat = max(rates["generate"]), max(rates["chat"])
    print(f"best of each: {best:.2f} and {chat:.2f} tok/s, ratio {chat / best:.3f}")


async def opening(turns: int) -> None:
    """Open a long session on the screen, five times; then how much of it is held."""
    from macspec_tui import garbage
    from macspec_tui.app import ChatApp
    from macspec_tui.conversation import Message
    from macspec_tui.history import PromptHistory
    from macspec_tui.settings import ChatSettings
    from macspec_tui.store import SessionStore

    with tempfile.TemporaryDirectory() as folder:
        store = SessionStore(Path(folder) / "sessions")
        session = store.new()
        for number in range(turns):
            said = session.conversation.say(f"question {number}")
            session.save(said, session.conversation.add(Message("assistant", code_heavy(450), parent=said.id)))
        session.close()
        client = ScriptedClient(
            Reply(text=code_heavy(300), per_round=50), info=replace(DEFAULT_INFO, max_context=10**7)
        )
        app = ChatApp(
            client,
            store,
            store.new(),
            ChatSettings(),
            history=PromptHistory(Path(folder) / "history"),
            theme="dark",
        )
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            for _ in range(5):
                begin = time.perf_counter()
                loaded = store.load(session.id)
                read = time.perf_counter()
                await app.chat.open_session(loaded)
                drawn = asyncio.Event()
                app.chat.call_after_refresh(drawn.set)
                await drawn.wait()
                print(f"read {1000 * (read - begin):.0f} ms, shown after {1000 * (time.perf_counter() - begin):.0f} ms")
                await pilot.pause()
                await app.chat.open_session(store.new())
                await pilot.pause()
            await app.chat.open_session(store.load(session.id))
            garbage.prepare()
            sizes = [(_resident(), len(list(app.chat.walk_children())))]
            for number in range(1, turns + 1):
                await app.chat.submit("again")
                while app.chat.turn is not None or app.chat.waiting:
                    await asyncio.sleep(0.002)
                # The scripted engine's record of every conversation it was sent is no part of the chat.
                client.requests.clear()
                if number in (turns // 2, turns):
                    await pilot.pause()
                    sizes.append((_resident(), len(list(app.chat.walk_children()))))
            shown = ", ".join(f"{size:.1f} MB with {held} widgets" for size, held in sizes)
            print(f"memory at the start, after {turns // 2} and after {turns} more turns: {shown}")
            growth = 1000 * (sizes[2][0] - sizes[1][0]) / (turns - turns // 2)
            print(f"growth over the second half: {growth:.0f} kB a turn")
        app.chat.session.close()


def _resident() -> float:
    if sys.platform != "linux":
        return float("nan")
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def start() -> None:
    """Seconds from `macspec chat` to its prompt on the terminal; the engine loads meanwhile, in its own process."""
    seconds = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            terminal = Terminal([sys.executable, "-m", "macspec", "chat"], Path(folder))
            shown = b""
            while b"ype a message" not in shown:
                shown += terminal.read(1.0)
                if b"\x1b[c" in shown:
                    # Asked for its background, a terminal answers at once.
                    os.write(terminal.outer, b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?62c")
                    shown = shown.replace(b"\x1b[c", b"")
            seconds.append(time.perf_counter() - begin)
            os.write(terminal.outer, b"\x04")
            while terminal.process.poll() is None:
                terminal.read(0.05)
            terminal.close()
    print(f"prompt after {', '.join(f'{value:.2f}' for value in seconds)} s; median {statistics.median(seconds):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stream", "real", "open", "start", "child"))
    parser.add_argument("--tokens", type=int, default=120, help="answer length of `real`")
    parser.add_argument("--repeats", type=int, default=2, help="of `stream` and `real`")
    parser.add_argument("--turns", type=int, default=200, help="session length of `open`")
    parser.add_argument("--mode", help="for `child`, which the others start")
    parser.add_argument("--out", type=Path, help="for `child`")
    options = parser.parse_args()
    if options.what == "stream":
        stream(options.repeats)
    elif options.what == "real":
        real(options.tokens, options.repeats)
    elif options.what == "open":
        asyncio.run(opening(options.turns))
    elif options.what == "start":
        start()
    elif options.mode == "stream":
        asyncio.run(in_the_chat(playing_client(), options.out, "go"))
    else:
        tokens = options.mode.partition("-")[2]
        client = ProcessClient(EngineOptions())
        asyncio.run(in_the_chat(client, options.out, PROMPT, depth="3", max_tokens=tokens))


if __name__ == "__main__":
    main()
