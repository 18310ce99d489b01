"""Draws the whole chat in the terminal it runs in, on a scripted engine: one answer of ``LINES`` lines, then it leaves.

``python drawn_chat.py FOLDER LINES`` keeps its session in ``FOLDER``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from macspec.worker.scripted import Reply, ScriptedClient
from macspec_tui.app import ChatApp
from macspec_tui.history import PromptHistory
from macspec_tui.settings import ChatSettings
from macspec_tui.store import SessionStore


async def main(folder: Path, lines: int) -> None:
    """Ask once, wait for the end of the answer, leave."""
    text = "".join(f"Line {number} of **text** with `code`.\n\n" for number in range(lines))
    store = SessionStore(folder / "sessions")
    history = PromptHistory(folder / "history")
    client = ScriptedClient(Reply(text=text, per_round=20, delay=0.02))
    app = ChatApp(client, store, store.new(), ChatSettings(), history=history, theme="dark", first="go")

    async def leave() -> None:
        while not app.chat.session.conversation.last("assistant"):
            await asyncio.sleep(0.05)
        await app.action_quit()

    task = asyncio.create_task(leave())
    await app.run_async()
    await task


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
