"""Puts an engine together: the pair, what verification costs on this machine, and how often drafts survive."""

from __future__ import annotations

from typing import Any

from macspec.engine.loop import Engine


def open_engine(model: str | None = None, drafter: str | None = None, **options: Any) -> Engine:
    """Load a pair and everything that choosing its depths needs; see `Engine.load` for the options.

    The first use of a pair on a machine measures it, which takes a few seconds.
    """
    from macspec.profiling import prepare

    engine = Engine.load(model, drafter, **options)
    prepare(engine, progress=options.get("progress"))
    return engine
