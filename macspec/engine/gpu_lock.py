"""One process on the GPU: two inference processes add their memory limits up to more than there is, and Macs panic.

The lock is the kernel's, on a small file; it goes away with the process however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from types import TracebackType

import platformdirs

from macspec.errors import BusyError


class GpuLock:
    """Held from `acquire` to `release`, or as a context manager. Does nothing where ``enabled`` is false."""

    def __init__(self, path: Path | None = None, enabled: bool | None = None) -> None:
        """
        Args:
            path: the lock file; None takes one per user.
            enabled: None locks on macOS only.
        """
        self.path = path or Path(platformdirs.user_cache_dir("macspec")) / "gpu.lock"
        self.enabled = sys.platform == "darwin" if enabled is None else enabled
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            BusyError: another process has it; the message names the process.
        """
        if not self.enabled or self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(file, 32, 0).decode("ascii", "replace").strip()
            os.close(file)
            process = f" (process {owner})" if owner.isdigit() else ""
            raise BusyError(
                f"Another macspec{process} is using the GPU, and two at once can freeze a Mac. Quit it and try again."
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode("ascii"), 0)
        self._file = file

    def release(self) -> None:
        """Give the lock back; no-op when it is not held."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
            os.close(file)

    def __enter__(self) -> GpuLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
