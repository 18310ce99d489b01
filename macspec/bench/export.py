"""Writes results where the user asked, and never loses a measurement to a bad path or a full disk."""

from __future__ import annotations

import csv
import errno
import io
import os
import sys
import tempfile
from pathlib import Path

import platformdirs

from macspec.bench.analysis import Row
from macspec.bench.document import Report, dumps
from macspec.errors import MacspecError, RequestError

COLUMNS = (
    "arm",
    "category",
    "tok_per_s",
    "tok_per_s_low",
    "tok_per_s_high",
    "ratio_to_plain",
    "ratio_low",
    "ratio_high",
    "acceptance_length",
    "identical",
    "identical_prompts",
    "compared_prompts",
    "prompts",
    "first_token_s",
    "peak_memory",
    "tok_per_joule",
)


class WriteError(MacspecError):
    """A result could not be written where it was asked for; the message says where it is instead."""

    code = "not_written"


def to_csv(report: Report) -> str:
    """One line per row of the results."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("id", "model", "drafter", *COLUMNS))
    for row in report.results:
        lead = (report.id, report.pair.get("model", ""), report.pair.get("drafter") or "")
        writer.writerow((*lead, *(_cell(row, name) for name in COLUMNS)))
    return buffer.getvalue()


def _cell(row: Row, name: str) -> object:
    value = getattr(row, name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else repr(value) if isinstance(value, float) else value


def check_writable(path: Path) -> None:
    """Refuse a path before minutes are spent measuring."""
    folder = path.parent
    if path.is_dir():
        raise RequestError(f"{path} is a folder; name a file in it.")
    if not folder.is_dir():
        raise RequestError(f"There is no folder {folder}; make it first or name another file.")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise RequestError(f"{path} cannot be written: permission denied. Name another file.")


def write(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole; raises `WriteError` with a sentence and leaves what was there."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        # A pipe or a device: there is nothing to keep.
        _write_plainly(path, data)
        return
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise _refusal(path, error) from error


def _write_plainly(path: Path, data: bytes) -> None:
    try:
        with path.open("wb") as stream:
            stream.write(data)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> WriteError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return WriteError(f"{path} could not be written: {'the disk is full' if full else error.strerror or error}.")


def _umask() -> int:
    value = os.umask(0o077)
    os.umask(value)
    return value


def last_file() -> Path:
    """Where the newest result is always kept, whatever else was asked for."""
    return Path(platformdirs.user_state_dir("macspec")) / "bench" / "last.json"


def keep(report: Report) -> Path | None:
    """Keep a result as the newest one; where that is impossible, beside other temporary files, else nowhere."""
    text = dumps(report)
    for path in (last_file(), Path(tempfile.gettempdir()) / f"macspec-bench-{report.id}.json"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, text)
        except (OSError, WriteError):
            continue
        return path
    return None


def deliver(report: Report, text: str, path: Path | None, kept: Path | None) -> None:
    """Write one export to ``path`` (None: standard output); a failure says where the result is kept."""
    if path is None:
        sys.stdout.write(text)
        return
    try:
        write(path, text)
    except WriteError as error:
        where = f"The result is kept in {kept}; use: macspec bench show {kept}" if kept else "It was not kept anywhere."
        raise WriteError(f"{error.message} {where}") from error
