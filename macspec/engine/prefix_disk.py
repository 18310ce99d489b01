"""The prefix cache's disk tier: evicted entries as safetensors files in a private folder, under a budget of its own.

One file per entry. Its name carries the digest of its content, so a file that was cut short, changed or put there by
someone else is recognised before anything in it is used; it is ignored with one line in the log. A file gets its name
only when it is complete, so the process may be killed at any moment. Files of other models, drafters, cache formats or
library versions carry another fingerprint and are not looked at.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from macspec.engine.caches import Checkpoint, TargetCache
from macspec.engine.prefix_cache import Entry, Tokens, common_length
from macspec_models.drafters.interface import DraftContext

log = logging.getLogger(__name__)

#: Raised whenever the layout of the files or of what caches export changes.
FORMAT = 1
_NAME = re.compile(r"prefix-([0-9a-f]{16})-([0-9a-f]{32})\.safetensors")
_PARTIAL = re.compile(r"partial-(\d+)\.safetensors")
_HEADER_LIMIT = 64 * 2**20


@dataclass
class _Stored:
    """What is known of one file without reading its arrays."""

    path: Path
    nbytes: int
    tokens: Tokens
    lengths: tuple[int, ...]
    """Lengths that can be restored besides the full one; empty when any length can."""
    marked: bool

    def usable(self, common: int) -> int:
        if common >= self.tokens.size or not self.marked:
            return min(common, self.tokens.size)
        return max((length for length in self.lengths if length <= common), default=0)


class DiskTier:
    """Entries in ``folder``, at most ``budget_bytes`` of them, for caches of one ``fingerprint``."""

    def __init__(self, folder: Path, budget_bytes: int, fingerprint: str) -> None:
        """Open or make the folder (mode 0700) and look at what is there; the oldest files over budget are removed.

        Args:
            fingerprint: everything the arrays depend on: model and revision, dtype, KV bits, drafter.

        Raises:
            OSError: the folder cannot be made or is not the user's own.
        """
        self.folder, self.budget_bytes = folder, budget_bytes
        self._fingerprint = f"{FORMAT}|{importlib.metadata.version('mlx-lm')}|{fingerprint}"
        self._stored: dict[str, _Stored] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(f"{folder} is not a folder of yours; the prefix cache keeps private text there")
        folder.chmod(0o700)
        self._scan()
        self._make_room(0)

    @property
    def nbytes(self) -> int:
        """Bytes of all prefix files in the folder, other models' included."""
        return sum(size for _, size, _ in self._files())

    def best(self, tokens: Tokens) -> tuple[int, str]:
        """Usable length of the best stored entry for ``tokens``, and its key; ``(0, "")`` without one."""
        found = [(stored.usable(common_length(stored.tokens, tokens)), key) for key, stored in self._stored.items()]
        return max(found, default=(0, ""))

    def load(self, key: str, cache: TargetCache, context: DraftContext | None) -> Entry | None:
        """Read an entry into the empty ``cache`` and ``context``; None, with one line, when it is damaged or gone."""
        stored = self._stored[key]
        try:
            _verify(stored.path)
            loaded: Any = mx.load(str(stored.path), return_metadata=True)
            arrays, metadata = loaded
            mx.eval(list(arrays.values()))
            about = json.loads(metadata["macspec"])
            length = int(about["length"])
            cache.fill(_unflatten(about["cache"], arrays), length)
            cache.check()
            marks = [
                Checkpoint(int(mark["length"]), tuple(_unflatten(mark["states"], arrays))) for mark in about["marks"]
            ]
            restored = _load_context(context, about["context"], arrays, length)
            os.utime(stored.path)
        except (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
            log.warning("%s is ignored: %s", stored.path, _line(error))
            del self._stored[key]
            return None
        return Entry(stored.tokens, cache, restored, marks)

    def store(self, entry: Entry) -> None:
        """Keep a copy of ``entry``; the least recently used files go when the budget asks for it.

        Nothing is stored when the entry alone is over budget or the disk refuses; the latter costs one line.
        """
        arrays: dict[str, mx.array] = {"tokens": mx.array(entry.tokens)}
        about = {
            "format": FORMAT,
            "fingerprint": self._fingerprint,
            "length": int(entry.cache.length),
            "marked": entry.cache.needs_marks,
            "cache": _flatten("cache", entry.cache.export(), arrays),
            "marks": [
                {"length": mark.length, "states": _flatten(f"mark{number}", list(mark.states), arrays)}
                for number, mark in enumerate(entry.marks)
            ],
            "context": _save_context(entry.context, arrays),
        }
        metadata = {"macspec": json.dumps(about)}
        # The header repeats names and shapes: far below 4 kB and 256 bytes per array.
        estimate = sum(array.nbytes for array in arrays.values()) + len(metadata["macspec"]) + 256 * len(arrays) + 4096
        if estimate > self.budget_bytes:
            return
        prefix = hashlib.sha256(entry.tokens.tobytes()).hexdigest()[:16]
        partial = self.folder / f"partial-{os.getpid()}.safetensors"
        try:
            self._make_room(estimate, but=prefix)
            partial.unlink(missing_ok=True)
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            mx.save_safetensors(str(partial), arrays, metadata)
            _sync(partial)
            path = self.folder / f"prefix-{prefix}-{_digest(partial)}.safetensors"
            partial.replace(path)
            _sync(self.folder)
        except (OSError, RuntimeError) as error:
            log.warning("a prefix could not be kept in %s: %s", self.folder, _line(error))
            partial.unlink(missing_ok=True)
            return
        lengths = tuple(mark.length for mark in entry.marks)
        self._stored[path.name] = _Stored(path, path.stat().st_size, entry.tokens, lengths, entry.cache.needs_marks)

    def _files(self) -> Iterator[tuple[Path, int, float]]:
        """Our files, finished or not, with size and time of last use."""
        for path in self.folder.iterdir():
            if _NAME.fullmatch(path.name) or _PARTIAL.fullmatch(path.name):
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield path, status.st_size, status.st_mtime

    def _scan(self) -> None:
        for path in sorted(self.folder.iterdir()):
            if partial := _PARTIAL.fullmatch(path.name):
                if not _alive(int(partial[1])):
                    path.unlink(missing_ok=True)
                continue
            if not _NAME.fullmatch(path.name):
                log.warning("%s is ignored: it is not a prefix file", path)
                continue
            try:
                about, tokens = _read_header(path)
                if about["fingerprint"] == self._fingerprint:
                    lengths = tuple(int(mark["length"]) for mark in about["marks"])
                    size = path.stat().st_size
                    self._stored[path.name] = _Stored(path, size, tokens, lengths, bool(about["marked"]))
            except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
                log.warning("%s is ignored: %s", path, _line(error))

    def _make_room(self, wanted: int, but: str = "") -> None:
        """Remove an older copy of the same tokens, then the least recently used files, until ``wanted`` bytes fit."""
        files = sorted(self._files(), key=lambda file: file[2])
        total = sum(size for _, size, _ in files)
        for path, size, _ in files:
            name = _NAME.fullmatch(path.name)
            if total + wanted > self.budget_bytes or (but and name is not None and name[1] == but):
                path.unlink(missing_ok=True)
                self._stored.pop(path.name, None)
                total -= size


def _flatten(name: str, groups: list[Any], arrays: dict[str, mx.array]) -> list[Any]:
    """Describe lists of arrays, integers and None as JSON; the arrays go to ``arrays`` under numbered names."""
    described: list[Any] = []
    for group in groups:
        if group is None:
            described.append(None)
            continue
        parts: list[Any] = []
        for part in group:
            if isinstance(part, mx.array):
                key = f"{name}.{len(described)}.{len(parts)}"
                arrays[key] = part
                parts.append(key)
            else:
                parts.append(part)
        described.append(parts)
    return described


def _unflatten(described: list[Any], arrays: dict[str, mx.array]) -> list[Any]:
    """Inverse of `_flatten`."""
    return [
        None if group is None else [arrays[part] if isinstance(part, str) else part for part in group]
        for group in described
    ]


def _save_context(context: DraftContext | None, arrays: dict[str, mx.array]) -> list[Any] | None:
    """A context that offers ``export() -> list`` of arrays, integers and None is kept; others are not."""
    if context is None or not hasattr(context, "export"):
        return None
    return _flatten("context", [context.export()], arrays)


def _load_context(
    context: DraftContext | None, described: list[Any] | None, arrays: dict[str, mx.array], length: int
) -> DraftContext | None:
    if context is None or described is None or not hasattr(context, "fill"):
        return None
    context.fill(_unflatten(described, arrays)[0], length)
    return context if context.length == length else None


def _read_header(path: Path) -> tuple[dict[str, Any], Tokens]:
    """Description and tokens of a file, without trusting it: sizes are checked before anything is read."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        (header_size,) = struct.unpack("<Q", file.read(8))
        if header_size > min(size - 8, _HEADER_LIMIT):
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(header_size))
        about = json.loads(header["__metadata__"]["macspec"])
        first, last = header["tokens"]["data_offsets"]
        if header["tokens"]["dtype"] != "I32" or not 0 <= first <= last <= size - 8 - header_size:
            raise ValueError("its tokens lie outside the file")
        file.seek(8 + header_size + first)
        tokens = np.frombuffer(file.read(last - first), dtype="<i4").astype(np.int32)
    if tokens.size != int(about["length"]):
        raise ValueError("it holds another number of tokens than it says")
    return about, tokens


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _verify(path: Path) -> None:
    name = _NAME.fullmatch(path.name)
    if path.is_symlink() or name is None or _digest(path) != name[2]:
        raise ValueError("its content is not what was written")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
