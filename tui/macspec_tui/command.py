"""``macspec chat``: its arguments, and the choice between the full screen and plain lines."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from macspec.errors import RequestError

if TYPE_CHECKING:
    from macspec.worker.client import EngineClient
    from macspec_tui.settings import ChatSettings
    from macspec_tui.store import Session, SessionStore

EPILOG = """\
On a terminal that cannot move its cursor (TERM=dumb) the chat is plain lines, as with --plain.

When standard input or output is not a terminal the chat is plain text: the whole of standard input, followed by PROMPT,
is one message, its answer goes to standard output, and the exit code is 0 (answered), 1 (failed), 2 (wrong use) or 130
(interrupted). Such a chat is not saved unless --continue or --resume is given.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``macspec chat``."""
    from macspec.cli_options import add_engine_options, add_request_options

    parser.epilog = EPILOG
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="a first message")
    parser.add_argument("--system", default=None, metavar="TEXT", help="the system prompt")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--continue", dest="resume_last", action="store_true", help="go on with the last conversation")
    which.add_argument("--resume", metavar="ID", help="go on with this conversation")
    which.add_argument("--sessions", action="store_true", help="list saved conversations and end")
    parser.add_argument("--plain", action="store_true", help="lines instead of a full screen; suits screen readers")
    parser.add_argument("--json", action="store_true", help="one JSON event per line on standard output")
    parser.add_argument("--theme", help="auto, dark, light, ansi or mono; NO_COLOR is honoured")
    add_engine_options(parser)
    add_request_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the chat and return its exit code. Raises `MacspecError` for what the person should read."""
    from macspec.download import ensure
    from macspec_tui.store import SessionStore

    store = SessionStore()
    if args.sessions:
        return _list_sessions(store)
    settings = _settings(args)
    if sys.stdout is None:
        raise RequestError("Standard output is closed, so there is nowhere to answer; redirect it to a file.")
    ensure(args)
    session = _session(args, store)
    try:
        return _chat(args, store, session, settings, lambda: _client(args))
    finally:
        session.close()


def _chat(
    args: argparse.Namespace,
    store: SessionStore,
    session: Session,
    settings: ChatSettings,
    make_client: Callable[[], EngineClient],
) -> int:
    # A closed standard input is None.
    piped_in, piped_out = sys.stdin is None or not sys.stdin.isatty(), not sys.stdout.isatty()
    prompt = args.prompt or ""
    # A terminal without a name, or named so, moves no cursor.
    lines_only = os.environ.get("TERM", "dumb") == "dumb"
    if not (args.plain or args.json or piped_in or piped_out or lines_only):
        from macspec_tui.app import run_app

        return run_app(make_client(), store, session, settings, theme=args.theme, first=prompt)
    from macspec.generate_command import DEFAULT_MAX_TOKENS
    from macspec_tui.history import PromptHistory
    from macspec_tui.plain import PlainChat, labelled_reader, line_reader

    resumed = args.resume_last or args.resume is not None
    once = piped_in or args.json or (piped_out and bool(prompt))
    if once and settings.base.sampling.max_tokens is None:
        # Nobody watches who could stop a small model that never ends by itself.
        settings = settings.set("max_tokens", str(DEFAULT_MAX_TOKENS))
    chat = PlainChat(
        make_client(),
        session,
        settings,
        out=sys.stdout,
        notes=sys.stderr or io.StringIO(),
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

    if sys.stdin is None:
        return ""
    try:
        return pasted(sys.stdin.buffer.read().decode("utf-8")).strip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"Standard input is not UTF-8 text (byte {error.start}); send text.") from error


def _client(args: argparse.Namespace) -> EngineClient:
    from macspec.cli_options import engine_options
    from macspec.worker.process_client import ProcessClient
    from macspec.worker.protocol import EngineOptions

    values = engine_options(args)
    known = {name: values.pop(name) for name in ("model", "drafter", "context") if name in values}
    return ProcessClient(EngineOptions(**known, extra=values))


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
    from macspec.cli_options import request_options
    from macspec.request import GenerationRequest
    from macspec_tui.settings import ChatSettings

    request = GenerationRequest(**request_options(args))
    if request.sampling.n != 1:
        raise RequestError("A chat shows one answer per turn; leave --n out, and use /retry for others.", param="n")
    return ChatSettings(request)


def _list_sessions(store: SessionStore) -> int:
    summaries = store.list()
    if not summaries:
        print("There are no saved conversations.", file=sys.stderr)
    for summary in summaries:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.updated))
        print(f"{summary.id}  {when}  {summary.turns:>3} turns  {summary.title}")
    return 0
