"""The slash commands: what there is, how one is recognised, and how it is completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from macspec.errors import RequestError


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``usage`` is its arguments; ``while_answering`` says whether it may run during an answer."""

    name: str
    usage: str
    help: str
    while_answering: bool = True


@dataclass(frozen=True, slots=True)
class Completion:
    """A proposal: ``insert`` replaces the whole prompt, ``label`` and ``help`` are shown."""

    insert: str
    label: str
    help: str


COMMANDS = (
    Command("help", "", "keys and commands"),
    Command("new", "", "start a new conversation", while_answering=False),
    Command("model", "[NAME [DRAFTER]]", "show the model, or load another", while_answering=False),
    Command("system", "[TEXT]", "show or set the system prompt; /system - empties it", while_answering=False),
    Command("set", "[NAME [VALUE]]", "show or change a sampling parameter, depth or policy"),
    Command("retry", "", "answer the last message again; both answers stay", while_answering=False),
    Command("edit", "[N]", "change your last (or Nth) message; the old one stays", while_answering=False),
    Command("undo", "", "take the last turn back", while_answering=False),
    Command("copy", "[N|all]", "copy the last answer, its Nth code block, or everything"),
    Command("export", "md|json [FILE]", "write the conversation to a file"),
    Command("save", "[TITLE]", "name the conversation; every turn is saved anyway"),
    Command("sessions", "[WORDS]", "find and open another conversation", while_answering=False),
    Command("think", "on|off|auto", "let the model think before it answers"),
    Command("context", "", "what fills the context, and what is free", while_answering=False),
    Command("stats", "", "numbers of the last answer and of the engine"),
    Command("theme", "[NAME]", "change the colours"),
    Command("find", "[WORDS]", "find text in this conversation"),
    Command("panel", "", "show or hide the speculation panel"),
    Command("runs", "", "colour the tokens that the drafter guessed"),
    Command("restart", "", "start the engine process again", while_answering=False),
    Command("quit", "", "leave"),
)
_BY_NAME = {command.name: command for command in COMMANDS} | {
    "exit": next(command for command in COMMANDS if command.name == "quit")
}

#: Proposes values of a command's argument from the words typed so far.
Arguments = Callable[[Sequence[str]], Iterable[tuple[str, str]]]


def is_command(text: str) -> bool:
    """Whether a prompt is a command and not a message; ``//`` starts a message with a slash."""
    return text.startswith("/") and not text.startswith("//")


def as_message(text: str) -> str:
    """A prompt that is no command as the message to send."""
    return text[1:] if text.startswith("//") else text


def parse(text: str) -> tuple[Command, str]:
    """The command in a prompt and its arguments; a beginning that fits only one command is enough.

    Raises `RequestError` for anything else, with what to do.
    """
    name, _, rest = text[1:].partition(" ")
    name, rest = name.strip().lower(), rest.strip()
    command = _BY_NAME.get(name)
    if command is None:
        fitting = [command for command in COMMANDS if name and command.name.startswith(name)]
        if len(fitting) > 1:
            names = ", ".join(f"/{command.name}" for command in fitting)
            raise RequestError(f"/{name} could be {names}. Type more of it.")
        if not fitting:
            raise RequestError(f"There is no command /{name}; /help lists them. A message may start with // instead.")
        command = fitting[0]
    return command, rest


def complete(text: str, arguments: Mapping[str, Arguments]) -> list[Completion]:
    """Proposals for a prompt that is being typed; none for a message or several lines."""
    if not is_command(text) or "\n" in text:
        return []
    name, space, rest = text[1:].partition(" ")
    if not space:
        return [
            Completion(
                f"/{command.name}" + (" " if command.usage else ""),
                f"/{command.name} {command.usage}".strip(),
                command.help,
            )
            for command in COMMANDS
            if command.name.startswith(name.lower())
        ]
    propose = arguments.get(name.lower())
    if propose is None:
        return []
    words = rest.split(" ")
    before = " ".join(["/" + name, *words[:-1]])
    return [
        Completion(f"{before} {value}", value, help)
        for value, help in propose(words[:-1])
        if value.lower().startswith(words[-1].lower()) and value != words[-1]
    ]
