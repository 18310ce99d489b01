"""A conversation as a tree of messages: a retry or an edit adds a branch and nothing is lost.

The shown conversation is the path from a root to ``head``. This is plain data without a terminal or a model.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from macspec.request import GenerationStats

Role = Literal["user", "assistant"]


def new_id() -> str:
    """A short random name for a message or session."""
    return secrets.token_hex(6)


@dataclass(slots=True)
class Message:
    """One message. ``text`` of an answer excludes its ``thinking``; ``reason`` says how an answer ended.

    ``reason`` is ``stop``, ``length``, ``cancelled`` (the person stopped it) or ``failed`` (the engine did).
    """

    role: Role
    text: str
    parent: str | None = None
    id: str = field(default_factory=new_id)
    created: float = field(default_factory=time.time)
    thinking: str = ""
    thinking_seconds: float = 0.0
    reason: str = ""
    model: str = ""
    stats: GenerationStats | None = None

    def to_record(self) -> dict[str, Any]:
        """JSON values; empty fields are left out."""
        record: dict[str, Any] = {"id": self.id, "parent": self.parent, "role": self.role, "text": self.text}
        record["created"] = round(self.created, 3)
        for name in ("thinking", "reason", "model"):
            if getattr(self, name):
                record[name] = getattr(self, name)
        if self.thinking_seconds:
            record["thinking_seconds"] = round(self.thinking_seconds, 3)
        if self.stats is not None:
            record["stats"] = self.stats.to_wire()
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Message:
        """Inverse of `to_record`. Raises `KeyError`, `TypeError` or `ValueError` for a record that is none."""
        role, text, name, parent = record["role"], record["text"], record["id"], record["parent"]
        if role not in ("user", "assistant") or not isinstance(text, str) or not isinstance(name, str):
            raise ValueError("not a message")
        if not (parent is None or isinstance(parent, str)):
            raise ValueError("not a message")
        stats = record.get("stats")
        return cls(
            role=role,
            text=text,
            parent=parent,
            id=name,
            created=float(record.get("created", 0.0)),
            thinking=str(record.get("thinking", "")),
            thinking_seconds=float(record.get("thinking_seconds", 0.0)),
            reason=str(record.get("reason", "")),
            model=str(record.get("model", "")),
            stats=None if stats is None else GenerationStats.from_wire(stats),
        )


class Conversation:
    """The messages of one session, the branch being shown, and its system prompt."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.title = ""
        self.messages: dict[str, Message] = {}
        self.head: str | None = None
        self._children: dict[str | None, list[str]] = {}

    def add(self, message: Message) -> Message:
        """Add ``message`` below its parent and show it. Raises `ValueError` when the parent is unknown."""
        if message.parent is not None and message.parent not in self.messages:
            raise ValueError(f"message {message.id} names the unknown parent {message.parent}")
        if message.id in self.messages:
            raise ValueError(f"message {message.id} exists already")
        self.messages[message.id] = message
        self._children.setdefault(message.parent, []).append(message.id)
        self.head = message.id
        return message

    def say(self, text: str) -> Message:
        """Add the person's next message."""
        return self.add(Message("user", text, parent=self.head))

    def path(self) -> list[Message]:
        """The shown messages, oldest first."""
        return list(self.path_to(self.head))

    def path_to(self, name: str | None) -> Iterator[Message]:
        """The messages from a root to the one called ``name``."""
        found: list[Message] = []
        while name is not None:
            message = self.messages[name]
            found.append(message)
            name = message.parent
        return reversed(found)

    def siblings(self, name: str) -> list[str]:
        """Names of all versions of a message, itself included, oldest first."""
        return self._children[self.messages[name].parent]

    def select(self, name: str) -> None:
        """Show the branch through a message, down to its newest descendant."""
        while below := self._children.get(name):
            name = below[-1]
        self.head = name

    def unanswered(self) -> Message | None:
        """The person's last message when it has no answer yet."""
        last = self.messages[self.head] if self.head else None
        return last if last is not None and last.role == "user" else None

    def last(self, role: Role) -> Message | None:
        """The newest shown message of ``role``."""
        return next((message for message in reversed(self.path()) if message.role == role), None)

    def rewind(self) -> Message | None:
        """Step back to before the person's last message and return that message; None when there is none.

        The messages stay in the tree and can be reached as a branch.
        """
        message = self.last("user")
        if message is not None:
            self.head = message.parent
        return message

    def remove(self, message: Message) -> None:
        """Forget a message that nothing follows, as if it had never been sent."""
        if self._children.get(message.id):
            raise ValueError(f"message {message.id} has answers")
        del self.messages[message.id]
        self._children[message.parent].remove(message.id)
        if self.head == message.id:
            self.head = message.parent

    def for_template(self) -> tuple[dict[str, Any], ...]:
        """The shown conversation as the message list of a chat template.

        The system prompt appears once, at the front. Thinking is passed apart, as ``reasoning_content``: a template
        that wants it back reads it there, and for any other it is not part of the prompt. Messages of the same role in
        a row (an answer that was never given) are joined, because many templates insist on turns.
        """
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        for message in self.path():
            if messages and messages[-1]["role"] == message.role:
                messages[-1]["content"] += "\n\n" + message.text
                continue
            entry: dict[str, Any] = {"role": message.role, "content": message.text}
            if message.thinking:
                entry["reasoning_content"] = message.thinking
            messages.append(entry)
        return tuple(messages)
