"""How far a run is, for whoever looks at a terminal."""

from __future__ import annotations

import sys

from macspec.bench.samples import Sample

WIDTH = 79


class Progress:
    """One line on a terminal's standard error; nothing when nobody looks."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int, arm: str, sample: Sample | None) -> None:
        """See `macspec.bench.runner.run`."""
        if not self._shown:
            return
        speed = sample.decode_rate if sample is not None else None
        tail = "warming up" if sample is None else f"{speed:.1f} tok/s" if speed else "no rate"
        of = f"{done}/{total} " if total else ""
        sys.stderr.write(f"\r\x1b[2K{f'{of}{arm}: {tail}'[:WIDTH]}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave the line empty."""
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
