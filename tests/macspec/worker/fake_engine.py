"""An engine for the child process whose behaviour the prompt spells out; needs no MLX.

The prompt is a list of words, answered one word per round. Some words do something first: ``!kill`` ends the process
with SIGKILL, ``!abort`` with SIGABRT after a driver message, ``!crumbs`` too, with more output in small pieces in
between, ``!raise`` fails, ``!refuse`` is a wrong value, ``!print`` writes to both outputs, ``!hang`` never returns,
``!forever`` repeats until cancelled. ``!once:PATH`` kills the process only the first time, and notes that in PATH.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from macspec.errors import ModelLoadError, ModelNotFoundError, RequestError
from macspec.request import (
    Event,
    Finished,
    GenerationRequest,
    GenerationStats,
    PrefillProgress,
    Round,
    Started,
    Text,
    TokenInfo,
)


class FakeEngine:
    """See the module."""

    def __init__(self, model: str, context: int) -> None:
        self.model, self.context = model, context

    @classmethod
    def load(
        cls,
        model: str | None = None,
        drafter: str | None = None,
        *,
        progress: Callable[[str, int, int], None],
        context: int = 4096,
    ) -> FakeEngine:
        """Load by name: ``missing``, ``broken``, ``kill`` and ``exit`` misbehave, and ``FOLDER/`` with a file in it.

        Each file there is one death: it goes, and so does the process.
        """
        progress("weights", 0, 2)
        if model is not None and model.endswith("/"):
            for file in Path(model).iterdir():
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        if model == "missing":
            raise ModelNotFoundError("There is no model 'missing'.")
        if model == "broken":
            raise ModelLoadError("The model 'broken' cannot be used.")
        if model == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if model == "exit":
            print("something terrible", file=sys.stderr)
            os._exit(3)
        progress("weights", 2, 2)
        return cls(model or "fake", context)

    def info(self) -> dict[str, Any]:
        """What is loaded."""
        return {"model": self.model, "max_context": self.context, "vocab": 100, "kind": "dflash"}

    def memory(self) -> dict[str, int]:
        """Bytes in use."""
        return {"active": 123, "peak": 456, "footprint": 789}

    def tokenize(self, request: GenerationRequest) -> list[int]:
        """One token per word."""
        return [len(word) for word in (request.prompt or "").split()]

    def generate(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """Play the prompt."""
        words = (request.prompt or "").split()
        if "!refuse" in words:
            raise RequestError("No.", param="temperature")
        yield Started(prompt_tokens=len(words), seed=1)
        yield PrefillProgress(done=len(words), total=len(words))
        said, position = 0, 0
        while position < len(words):
            if cancelled():
                yield Finished(reason="cancelled", stats=GenerationStats(generation_tokens=said))
                return
            word = words[position]
            self._act(word)
            if word != "!forever":
                position += 1
            said += 1
            yield Round(drafted=3, verified=2, accepted=0, committed=1)
            yield Text(text=f" {word}", tokens=(TokenInfo(id=1, text=f" {word}"),))
        yield Finished(reason="stop", stats=GenerationStats(generation_tokens=said))

    def _act(self, word: str) -> None:
        if word == "!kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word in ("!abort", "!crumbs"):
            print("[METAL] Command buffer execution failed: Insufficient Memory", file=sys.stderr, flush=True)
            for _ in range(400 if word == "!crumbs" else 0):
                os.write(2, b"  piece")
                time.sleep(0.0005)
            os.abort()
        elif word == "!raise":
            raise ValueError("boom")
        elif word == "!print":
            print("x" * 200_000)
            os.write(1, b'\x00\x00\x00\x05{"ty\xff' * 1000)
            os.write(2, b"\xff\x00" * 1000)
        elif word == "!hang":
            time.sleep(1000)
        elif word == "!forever":
            time.sleep(0.002)
        elif word.startswith("!once:"):
            mark = Path(word.removeprefix("!once:"))
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
