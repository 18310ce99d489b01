"""One line of progress on standard error while something loads; nothing at all when nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def load_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A callback ``(stage, done, total)`` that rewrites one line of a terminal and clears it in the end."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return

    def show(stage: str, done: int, total: int) -> None:
        share = f" {100 * done // total:3d} %" if total > 1 else ""
        sys.stderr.write(f"\r\x1b[2K{stage}{share}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
