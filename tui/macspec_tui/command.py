"""``macspec chat``: its arguments, and the choice between the full screen and plain lines."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from macspec.errors import MacspecError, RequestError

if TYPE_CHECKING:
    from macspec.request import SamplingParams
    from macspec.worker.client import EngineClient
    from macspec_tui.settings import ChatSettings
    from macspec_tui.store import Session, SessionStore

EPILOG = """\
When standard input or output is not a terminal the chat is plain text: the whole of standard input, followed by PROMPT,
is one message, its answer goes to standard output, and the exit code is 0 (answered), 1 (failed), 2 (wrong use) or 130
(interrupted). Such a chat is not saved unless --continue or --resume is given.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``macspec chat``."""
    parser.epilog = EPILOG
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="a first message")
    parser.add_argument("--model", help="a name from `macspec models`, a repository or a folder")
    parser.add_argument("--drafter", help="a drafter, or none to decode plainly; default: the model's own")
    parser.add_argument("--system", default=None, metavar="TEXT", help="the system prompt")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--continue", dest="resume_last", action="store_true", help="go on with the last conversation")
    which.add_argument("--resume", metavar="ID", help="go on with this conversation")
    which.add_argument("--sessions", action="store_true", help="list saved conversations and end")
    parser.add_argument("--plain", action="store_true", help="lines instead of a full screen; suits screen readers")
    parser.add_argument("--json", action="store_true", help="one JSON event per line on standard output")
    parser.add_argument("--theme", help="auto, dark, light, ansi or mono; NO_COLOR is honoured")
    parser.add_argument("--depth", default="auto", help="draft tokens verified per round: auto, full or a number")
    parser.add_argument("--policy", default="rate", help="rule that chooses the depth when it is auto")
    parser.add_argument("--think", choices=("on", "off", "auto"), default="auto", help="let the model think first")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="limit of prompt and answer together")
    _add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    """Run the chat and return its exit code. Raises `MacspecError` for what the person should read."""
    from macspec_tui.store import SessionStore

    store = SessionStore()
    if args.sessions:
        return _list_sessions(store)
    settings = _settings(args)
    session = _session(args, store)
    try:
        return _chat(args, store, session, settings, lambda: _client(args))
    finally:
        session.close()


def main(arguments: list[str] | None = None) -> int:
    """`run` for callers without a command line of their own: errors become a sentence and an exit code."""
    parser = argparse.ArgumentParser(prog="macspec chat", formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    return guarded(lambda: run(parser.parse_args(arguments)))


def guarded(work: Callable[[], int]) -> int:
    """Exit code of ``work``: errors are one sentence on standard error, a closed pipe is silence."""
    try:
        return work()
    except BrokenPipeError:
        # Python would complain once more when it flushes the closed stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MacspecError as error:
        print(f"macspec: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _chat(
    args: argparse.Namespace,
    store: SessionStore,
    session: Session,
    settings: ChatSettings,
    make_client: Callable[[], EngineClient],
) -> int:
    piped_in, piped_out = not sys.stdin.isatty(), not sys.stdout.isatty()
    prompt = args.prompt or ""
    if not (args.plain or args.json or piped_in or piped_out):
        from macspec_tui.app import run_app

        return run_app(make_client(), store, session, settings, theme=args.theme, first=prompt)
    from macspec_tui.history import PromptHistory
    from macspec_tui.plain import PlainChat, labelled_reader, line_reader

    resumed = args.resume_last or args.resume is not None
    once = piped_in or args.json or (piped_out and bool(prompt))
    chat = PlainChat(
        make_client(),
        session,
        settings,
        out=sys.stdout,
        notes=sys.stderr,
        save=resumed or not once,
        events_as_json=args.json,
    )
    if once:
        parts = [_standard_input() if piped_in else "", prompt]
        return chat.once("\n\n".join(part for part in parts if part.strip()))
    history = PromptHistory()
    read = labelled_reader(sys.stderr) if piped_out else line_reader(history)
    return chat.talk(read, history, first=prompt)


def _standard_input() -> str:
    from macspec_tui.clean import pasted

    try:
        return pasted(sys.stdin.buffer.read().decode("utf-8")).strip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"Standard input is not UTF-8 text (byte {error.start}); send text.") from error


def _client(args: argparse.Namespace) -> EngineClient:
    from macspec.worker.process_client import ProcessClient

    from macspec.worker.protocol import EngineOptions

    return ProcessClient(EngineOptions(model=args.model, drafter=args.drafter, context=args.context))


def _session(args: argparse.Namespace, store: SessionStore) -> Session:
    name = args.resume
    if args.resume_last:
        name = store.latest()
        if name is None:
            raise RequestError("There is no earlier conversation to continue; start one with `macspec chat`.")
    if name is None:
        return store.new(args.system or "")
    session = store.load(name)
    session.lock()
    if args.system is not None:
        session.set_system(args.system)
    return session


def _settings(args: argparse.Namespace) -> ChatSettings:
    from macspec_tui.settings import ChatSettings

    return ChatSettings(
        model=args.model,
        drafter=args.drafter,
        depth=args.depth,
        policy=args.policy,
        thinking={"on": True, "off": False, "auto": None}[args.think],
        sampling=_sampling(args),
    )


def _list_sessions(store: SessionStore) -> int:
    summaries = store.list()
    if not summaries:
        print("There are no saved conversations.", file=sys.stderr)
    for summary in summaries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.updated))
        print(f"{summary.id}  {when}  {summary.turns:>3} turns  {summary.title}")
    return 0


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    from macspec.cli_options import add_sampling_arguments

    add_sampling_arguments(parser)


def _sampling(args: argparse.Namespace) -> SamplingParams:
    from macspec.cli_options import sampling_from

    return sampling_from(args)
