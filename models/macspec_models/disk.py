"""Space on disk, also for folders that are still to be made."""

from __future__ import annotations

import shutil
from pathlib import Path


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def free_bytes(folder: Path) -> int | None:
    """Bytes free where the folder is or would be; None when that cannot be told."""
    try:
        return shutil.disk_usage(existing(folder)).free
    except OSError:
        return None
