"""An engine class for the worker process: the real loop over a tiny random target, with or without a drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from macspec.engine.load import load_pair
from macspec.engine.loop import Engine
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
