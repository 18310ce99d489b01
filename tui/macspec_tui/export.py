"""A conversation as Markdown or JSON in a file of the person's choice."""

from __future__ import annotations

import json
from pathlib import Path

from macspec.errors import RequestError
from macspec_tui import figures
from macspec_tui.conversation import Conversation
from macspec_tui.store import title_of

FORMATS = ("md", "json")


def as_markdown(conversation: Conversation) -> str:
    """The shown branch as Markdown; answers are the model's source text, unchanged."""
    parts = [f"# {title_of(conversation)}"]
    if conversation.system:
        parts.append(f"## System\n\n{conversation.system}")
    for message in conversation.path():
        heading = "You" if message.role == "user" else message.model or "Answer"
        body = f"## {heading}\n\n"
        if message.thinking:
            quoted = "\n".join(f"> {line}".rstrip() for line in message.thinking.split("\n"))
            body += f"{quoted}\n\n"
        body += message.text
        ending = figures.ending(message.reason)
        parts.append(body + (f"\n\n*({ending})*" if ending else ""))
    return "\n\n".join(parts) + "\n"


def as_json(conversation: Conversation) -> str:
    """The shown branch as JSON: a title, a system prompt and the messages with their numbers."""
    values = {
        "title": title_of(conversation),
        "system": conversation.system,
        "messages": [message.to_record() for message in conversation.path()],
    }
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def export(conversation: Conversation, kind: str, target: str, name: str) -> Path:
    """Write the conversation to ``target`` (default: ``name`` in the working folder) and return where.

    An existing file is never replaced. Raises `RequestError` with the reason.
    """
    if kind not in FORMATS:
        raise RequestError("Use /export md or /export json, with a file name if you like.")
    if not conversation.path():
        raise RequestError("There is nothing to export yet.")
    path = Path(target).expanduser() if target else Path(f"{name}.{kind}")
    text = as_markdown(conversation) if kind == "md" else as_json(conversation)
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError as error:
        raise RequestError(f"{path} exists already; give another file name.") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}.") from error
    return path.resolve()
