"""What the person typed before, across sessions: a private JSONL file of texts, oldest first."""

from __future__ import annotations

import json
import os
from pathlib import Path

from macspec_tui.files import FILE_MODE, data_folder, replace_file

#: Entries kept; the file is cut back to this many when it is twice as long.
KEEP = 1000


class PromptHistory:
    """Texts sent earlier. A file that cannot be written only costs the history across sessions."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path if path is not None else data_folder() / "history.jsonl"
        self.entries: list[str] = []
        try:
            lines = self._path.read_bytes().split(b"\n")
        except OSError:
            lines = []
        for line in lines:
            try:
                text = json.loads(line)
            except ValueError:
                continue
            if isinstance(text, str):
                self.entries.append(text)
        if len(self.entries) > 2 * KEEP:
            del self.entries[:-KEEP]
            self._write(None)

    def add(self, text: str) -> None:
        """Remember a text, unless it repeats the newest one."""
        if not text.strip() or (self.entries and self.entries[-1] == text):
            return
        self.entries.append(text)
        self._write(text)

    def search(self, query: str) -> list[str]:
        """Different texts with every word of ``query`` in them, newest first."""
        words = query.casefold().split()
        found = dict.fromkeys(text for text in reversed(self.entries) if all(word in text.casefold() for word in words))
        return list(found)

    def _write(self, text: str | None) -> None:
        try:
            if text is None:
                replace_file(self._path, "".join(json.dumps(entry) + "\n" for entry in self.entries).encode())
                return
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                os.write(handle, json.dumps(text).encode() + b"\n")
            finally:
                os.close(handle)
        except OSError:
            return
