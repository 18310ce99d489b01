"""Energy from a source of power readings that the user names; nothing is guessed where there is none.

Apple Silicon tells its power to root or through private frameworks only, and a plug's meter speaks its own protocol. So
the source is a command that prints the watts drawn at that moment, one number a line, for as long as it runs.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Self

from macspec.errors import RequestError

#: Seconds to wait for the first reading.
FIRST_READING_S = 10.0
#: A reading older than this no longer says what is drawn now.
STALE_S = 10.0
MOST_WATTS = 100_000.0


class Energy:
    """Joules drawn since the start, each reading holding until the next one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._joules = self._watts = self._read_at = 0.0
        self._known = False

    def add(self, line: str) -> bool:
        """Take one line of the source; False when it is not a number of watts."""
        try:
            watts = float(line)
        except ValueError:
            return False
        if not 0.0 <= watts <= MOST_WATTS or math.isnan(watts):
            return False
        with self._lock:
            now = self._clock()
            if self._known:
                self._joules += self._watts * (now - self._read_at)
            self._watts, self._read_at, self._known = watts, now, True
        return True

    def joules(self) -> float | None:
        """Joules until now; None without a reading, or when the last one is stale."""
        with self._lock:
            age = self._clock() - self._read_at
            return self._joules + self._watts * age if self._known and age <= STALE_S else None


class PowerCommand:
    """The user's command, running for as long as the ``with`` block."""

    def __init__(self, command: str, first_reading_s: float = FIRST_READING_S) -> None:
        self.command, self._wait_s = command, first_reading_s
        self.energy = Energy()
        self._ready = threading.Event()
        self._rubbish = ""

    def __enter__(self) -> Self:
        """Start it and wait for its first reading; raises `RequestError` when none comes."""
        self._process = subprocess.Popen(
            self.command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._ready.wait(self._wait_s)
        except BaseException:
            self._stop()
            raise
        if self.energy.joules() is None:
            self._stop()
            said = f"it printed {self._rubbish!r}" if self._rubbish else "it printed nothing"
            raise RequestError(
                f"The power command {self.command!r} gave no watts within {self._wait_s:g} s: {said}. It must print "
                "the watts drawn now, one number a line, for as long as it runs.",
                param="power",
            )
        return self

    def __exit__(self, *_: object) -> None:
        """End it and whatever it started."""
        self._stop()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if self.energy.add(line):
                self._ready.set()
            elif not self._rubbish:
                self._rubbish = line.strip()[:80]
        self._ready.set()

    def _stop(self) -> None:
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, how)
                self._process.wait(timeout=2.0)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
            break
        self._process.wait()
        # The pipe ends with the processes that held it.
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
