"""Private folders and files: made for their owner only, replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def data_folder() -> Path:
    """Where sessions and histories live on this system, made if needed."""
    from platformdirs import user_data_path

    return private_folder(user_data_path("macspec", appauthor=False))


def private_folder(path: Path) -> Path:
    """Make ``path`` with owner-only permissions, tightening those of an existing one; returns it."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(FOLDER_MODE)
    return path


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that any reader, and any crash, meets the old or the new content and no mixture."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
