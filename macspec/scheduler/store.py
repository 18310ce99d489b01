"""Keeps learned survival tables in files that two processes may share."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from macspec.scheduler.survival import SurvivalError, SurvivalModel


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only; whatever happens, the old or the new one is there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside ``path``; other processes wait."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_name(path.name + ".lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(stream, fcntl.LOCK_UN)


def load_survival(path: Path, model: SurvivalModel) -> str:
    """Fill ``model`` from a file. Returns "" or a sentence saying why it starts anew; never raises for bad content."""
    try:
        model.load_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return "There is no survival table yet; acceptance is learned as you go."
    except (OSError, ValueError) as error:
        return f"The survival table {path} cannot be read ({error}) and starts anew."
    except SurvivalError as error:
        return f"{error} ({path})"
    return ""


def save_survival(path: Path, model: SurvivalModel) -> None:
    """Add what ``model`` has learned since it was loaded or last saved to the file.

    Counts are added to what is there now, so two processes that learned at once both keep what they learned.
    """
    with locked(path):
        merged = SurvivalModel(model.prior)
        load_survival(path, merged)
        merged.merge(model.take_fresh())
        write_atomically(path, json.dumps(merged.to_json(), separators=(",", ":")))
