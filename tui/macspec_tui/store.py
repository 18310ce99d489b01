"""Sessions on disk: one JSONL file each, appended after every turn, private to their owner.

A file is a list of records; the last word on a thing wins. Appending is one ``write`` and an ``fsync``, so a crash can
only tear the last line, which the next reader skips and the next writer closes. Damaged lines cost themselves and
never the rest of the file. What a full disk refuses is written with the next record that fits.

Records: ``{"type": "session", "version", "id", "created"}`` first, then ``message`` (see `Message.to_record`),
``head {"id"}`` (the branch being shown), ``remove {"id"}``, ``title {"text"}`` and ``system {"text"}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from macspec.errors import MacspecError, RequestError
from macspec_tui.conversation import Conversation, Message, new_id
from macspec_tui.files import FILE_MODE, data_folder, private_folder

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TITLE_LENGTH = 60


class SessionError(MacspecError):
    """A session cannot be found, read or written."""

    exit_code = 1
    code = "session_error"


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the session list. ``updated`` is in seconds since 1970."""

    id: str
    title: str
    updated: float
    turns: int
    #: The first place where a search matched, on one line.
    match: str = ""


class Session:
    """A conversation and the file it is kept in. The file appears with the first message."""

    def __init__(self, path: Path, conversation: Conversation, *, stored: bool = False, damaged: int = 0) -> None:
        self.path = path
        self.conversation = conversation
        #: Lines that could not be read; they are left out and stay in the file.
        self.damaged = damaged
        self._stored = stored
        #: Records that the disk refused, oldest first; they go before the next ones.
        self._unsaved: list[dict[str, Any]] = []
        self._file: int | None = None

    @property
    def id(self) -> str:
        """The name it is resumed by."""
        return self.path.stem

    @property
    def stored(self) -> bool:
        """Whether there is a file."""
        return self._stored

    def save(self, *messages: Message) -> None:
        """Append messages of the conversation, oldest first. Raises `SessionError` when the disk refuses."""
        self._append([{"type": "message", **message.to_record()} for message in messages])

    def save_head(self) -> None:
        """Append which branch is shown; nothing for a session without messages."""
        if self._stored or self._unsaved:
            self._append([{"type": "head", "id": self.conversation.head}])

    def save_removal(self, message: Message) -> None:
        """Append that a message was taken back."""
        if self._stored or self._unsaved:
            self._append([{"type": "remove", "id": message.id}])

    def save_unsaved(self) -> None:
        """Append what the disk has refused so far. Raises `SessionError` when it still does."""
        if self._unsaved:
            self._append([])

    def set_title(self, title: str) -> None:
        """Name the session."""
        self.conversation.title = title
        if self._stored:
            self._append([{"type": "title", "text": title}])

    def set_system(self, system: str) -> None:
        """Change the system prompt."""
        self.conversation.system = system
        if self._stored:
            self._append([{"type": "system", "text": system}])

    def lock(self) -> None:
        """Take the session for this process; raises `SessionError` when another one has it open."""
        if self._file is not None:
            return
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise SessionError(f"The session file {self.path} cannot be opened: {error.strerror}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise SessionError(
                f"The session {self.id} is open in another macspec window; close it there or start a new session."
            ) from error
        self._file = handle

    def close(self) -> None:
        """Let others open the session, after a last try to save what the disk refused."""
        with contextlib.suppress(SessionError):
            self.save_unsaved()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, records: list[dict[str, Any]]) -> None:
        self._unsaved += records
        records = self._unsaved
        if not self._stored:
            private_folder(self.path.parent)
            conversation = self.conversation
            first: list[dict[str, Any]] = [
                {"type": "session", "version": VERSION, "id": self.id, "created": round(time.time(), 3)}
            ]
            if conversation.system:
                first.append({"type": "system", "text": conversation.system})
            if conversation.title:
                first.append({"type": "title", "text": conversation.title})
            records = first + records
        self.lock()
        handle = self._file
        assert handle is not None  # set by lock
        lines = [json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records]
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                data = b"\n" + data
            _write(handle, data, size)
            os.fsync(handle)
        except OSError as error:
            raise SessionError(
                f"The conversation could not be saved to {self.path}: {error.strerror}. It stays on the screen; "
                "free some space or /export it elsewhere."
            ) from error
        self._stored = True
        self._unsaved = []


def _write(handle: int, data: bytes, size: int) -> None:
    """Append all of ``data`` to a file of ``size`` bytes or nothing of it: a disk that fills up takes a part."""
    written = 0
    try:
        while written < len(data):
            written += os.write(handle, data[written:])
    except OSError:
        os.ftruncate(handle, size)
        raise


class SessionStore:
    """The folder of sessions."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = private_folder(folder if folder is not None else data_folder() / "sessions")

    def new(self, system: str = "") -> Session:
        """An empty session; nothing is written before its first message."""
        name = time.strftime("%Y%m%d-%H%M%S-") + new_id()[:4]
        return Session(self.folder / f"{name}.jsonl", Conversation(system))

    def load(self, name: str) -> Session:
        """The session called ``name``, or the only one that starts or ends so.

        Raises `RequestError` when there is none or several, `SessionError` when it cannot be read.
        """
        path = self._find(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SessionError(f"The session {name} cannot be read: {error.strerror}.") from error
        conversation, damaged = replay(data)
        return Session(path, conversation, stored=True, damaged=damaged)

    def latest(self) -> str | None:
        """Name of the session that was used last, None when there is none. One without a message was never begun."""
        for path in self._newest_first():
            try:
                if not _is_empty(*replay(path.read_bytes())):
                    return path.stem
            except OSError:
                # Whoever opens it is told why it cannot be read.
                return path.stem
        return None

    def list(self, query: str = "") -> list[Summary]:
        """Sessions with messages, last used first; with ``query`` those with all its words in a text or the title."""
        words = query.casefold().split()
        found: list[Summary] = []
        for path in self._newest_first():
            try:
                conversation, damaged = replay(path.read_bytes())
            except OSError:
                continue
            if _is_empty(conversation, damaged):
                continue
            match = ""
            if words:
                texts = [conversation.title, *(message.text for message in conversation.messages.values())]
                whole = "\n".join(texts).casefold()
                if not all(word in whole for word in words):
                    continue
                match = next((_around(text, words[0]) for text in texts if words[0] in text.casefold()), "")
            turns = sum(message.role == "user" for message in conversation.path())
            found.append(Summary(path.stem, title_of(conversation), _modified(path), turns, match))
        return found

    def delete(self, name: str) -> None:
        """Remove a session for good."""
        self._find(name).unlink()

    def _paths(self) -> Iterator[Path]:
        return self.folder.glob("*.jsonl")

    def _newest_first(self) -> Sequence[Path]:
        return sorted(self._paths(), key=lambda path: (_modified(path), path.name), reverse=True)

    def _find(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise RequestError(f"{name!r} is not the name of a session; /sessions and --sessions list them.")
        exact = self.folder / f"{name}.jsonl"
        if exact.is_file():
            return exact
        matches = [path for path in self._paths() if path.stem.startswith(name) or path.stem.endswith(name)]
        if len(matches) > 1:
            names = ", ".join(sorted(path.stem for path in matches)[:5])
            raise RequestError(f"Several sessions match {name}: {names}. Give more of the name.")
        if not matches:
            raise RequestError(f"There is no session {name}; `macspec chat --sessions` lists them.")
        return matches[0]


def title_of(conversation: Conversation) -> str:
    """The session's title: the one it was given, or the start of its first message."""
    if conversation.title:
        return conversation.title
    first = next((message.text for message in conversation.path() if message.role == "user"), "")
    line = " ".join(first.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1] + "…"


def replay(data: bytes) -> tuple[Conversation, int]:
    """The conversation in a session file and how many of its lines are damaged.

    A message whose parent was lost is put after the last readable one, so that what follows a damaged line stays.
    """
    conversation, damaged = Conversation(), 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            _apply(conversation, record)
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged += 1
    return conversation, damaged


def _apply(conversation: Conversation, record: dict[str, Any]) -> None:
    kind = record["type"]
    if kind == "message":
        message = Message.from_record(record)
        if message.parent is not None and message.parent not in conversation.messages:
            message.parent = conversation.head
        conversation.add(message)
    elif kind == "head":
        if record["id"] is not None and record["id"] not in conversation.messages:
            raise ValueError("unknown head")
        conversation.head = record["id"]
    elif kind == "remove":
        conversation.remove(conversation.messages[record["id"]])
    elif kind == "title":
        conversation.title = str(record["text"])
    elif kind == "system":
        conversation.system = str(record["text"])
    elif kind != "session":
        raise ValueError(f"unknown record {kind!r}")


def _is_empty(conversation: Conversation, damaged: int) -> bool:
    """Whether a file holds nothing to go on with: its only question was taken back, or the disk refused it."""
    return not conversation.messages and not damaged


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _around(text: str, word: str, width: int = 60) -> str:
    """``width`` characters of ``text`` around the first ``word``, on one line."""
    line = " ".join(text.split())
    at = max(line.casefold().find(word), 0)
    start = max(at - width // 3, 0)
    return ("…" if start else "") + line[start : start + width] + ("…" if start + width < len(line) else "")
