"""The command line. Each command lives beside what it drives; here they only get their names."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from macspec import __version__
from macspec.arguments import Parser
from macspec.errors import MacspecError


@dataclass(frozen=True)
class Command:
    """A command: the module with its ``add_arguments`` and ``run``, imported when the command is used."""

    module: str
    help: str


COMMANDS = {
    "chat": Command("macspec_tui.command", "talk to a model in the terminal"),
    "generate": Command("macspec.generate_command", "answer one prompt"),
    "serve": Command("macspec.server.command", "serve the OpenAI-compatible API on this machine"),
    "bench": Command("macspec.bench.command", "measure speed and equality on this machine"),
    "profile": Command("macspec.profiling.command", "measure what verification costs here"),
    "simulate": Command("macspec.scheduler.command", "replay depth policies over a recorded trace"),
    "train": Command("macspec_models.training.command", "train a drafter or a predictor"),
    "models": Command("macspec.models_command", "list, download and remove models"),
    "doctor": Command("macspec.doctor", "explain this machine and what stands in the way of speed"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = Parser(
        prog="macspec", description="Local LLM inference on Apple Silicon: drafted for speed, exact in its text."
    )
    parser.add_argument("--version", action="version", version=f"macspec {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen_parser = parser
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}.")
        if name == chosen:
            chosen_parser = sub
            module = importlib.import_module(command.module)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    try:
        options, unknown = parser.parse_known_args(words)
        if unknown:
            chosen_parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return int(options.run(options))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output is gone; nothing more can be said, and nothing is wrong.
        _drop_output()
        return 0
    except Exception as error:
        message = describe(error)
        if message is None:
            raise
        if isinstance(error, OSError):
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            _drop_output()
        print(f"macspec: {message}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))


def _drop_output() -> None:
    """Let what standard output still holds go nowhere, or the interpreter would fail with it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe(error: Exception) -> str | None:
    """The sentence for an error meant for people, or None for a fault of ours, which deserves its traceback."""
    if isinstance(error, MacspecError):
        return error.message
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" for {error.filename}" if error.filename else ""
        return f"There is no space left{where}, so what was being written is incomplete; free some and try again."
    # Errors about model files are declared by a package that must not be imported just to look.
    errors = sys.modules.get("macspec_models.errors")
    if errors is not None and isinstance(error, errors.ModelError):
        return str(error)
    return None
