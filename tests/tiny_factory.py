"""An engine class for the worker process: the real loop over a tiny random target, with or without a drafter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

from macspec.engine.load import load_pair
from macspec.engine.loop import Engine
from macspec.request import Event, GenerationRequest, PrefillProgress, Round
from macspec.scheduler.policies import make_policy


class TinyEngine(Engine):
    """Loads the folder it is given; ``auto`` depth needs no cost ladder here."""

    @classmethod
    def load(
        cls,
        model: str | None = None,
        drafter: str | None = None,
        *,
        progress: Callable[[str, int, int], None] | None = None,
        **options: Any,
    ) -> TinyEngine:
        """See `Engine.load`."""
        assert model is not None and Path(model).is_dir()
        pair = load_pair(model, "none" if drafter is None else drafter, progress=progress)
        return cls(
            pair.target,
            pair.drafter,
            prefill_chunk=8,
            policy_factory=lambda name: make_policy("fixed:3" if name == "rate" else name),
            **options,
        )


class StrictEngine(TinyEngine):
    """Fails a request for which more than the running round, or prompt chunk, is computed after nobody wants it."""

    def generate(self, request: GenerationRequest, cancelled: Callable[[], bool] = lambda: False) -> Generator[Event]:
        """See `Engine.generate`."""
        late = 0
        with contextlib.closing(cast(Generator[Event], super().generate(request, cancelled))) as events:
            while True:
                unwanted = cancelled()
                event = next(events, None)
                if event is None:
                    return
                late += unwanted and isinstance(event, (Round, PrefillProgress))
                if late > 1:
                    raise RuntimeError(f"{late} rounds were computed after the request was cancelled")
                yield event
