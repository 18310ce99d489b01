"""The chat without a screen: lines in, text out. For pipes, scripts, screen readers and ``--plain``.

Nothing is ever drawn over: no colour, no cursor movement, no spinner. The answer goes to standard output and all else
(labels, progress, notes) to standard error, so that ``macspec chat > file`` keeps just the answers.

When standard input is not a terminal, the whole of it is one message: ``git diff | macspec chat "Explain this"`` sends
the diff followed by the argument, gets one answer and ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TextIO

from macspec.errors import MacspecError, RequestError
from macspec.request import Event, Text, event_to_wire
from macspec.worker.client import EngineClient
from macspec.worker.protocol import EngineInfo, LoadProgress
from macspec_tui import figures
from macspec_tui.bridge import Bridge
from macspec_tui.clean import for_display
from macspec_tui.draft import AnswerDraft
from macspec_tui.history import PromptHistory
from macspec_tui.settings import ChatSettings
from macspec_tui.store import Session, SessionError

INTERRUPTED = 130
#: A second Ctrl-C within this many seconds leaves the chat.
AGAIN = 2.0

_HELP = """\
Type a message and press Enter. End a line with \\ to go on in the next one.
Ctrl-C stops an answer; twice leaves. Ctrl-D or /quit leaves.
/new  start over          /retry  another answer      /undo   take the last turn back
/set NAME VALUE           /think on|off|auto          /system TEXT
/stats  the last answer   /help   this text           //text  a message that starts with /
The full-screen chat (without --plain) has more commands."""


class PlainChat:
    """One chat over streams. ``out`` gets answers, ``notes`` everything else."""

    def __init__(
        self,
        client: EngineClient,
        session: Session,
        settings: ChatSettings,
        *,
        out: TextIO,
        notes: TextIO,
        save: bool = True,
        events_as_json: bool = False,
        show_thinking: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.settings = settings
        self._bridge = Bridge(client)
        self._out = out
        self._notes = notes
        self._save = save
        self._json = events_as_json
        self._show_thinking = show_thinking
        self._clock = clock
        self._info: EngineInfo | None = None
        self._stage = ""

    def once(self, text: str) -> int:
        """Answer one message and return the exit code."""
        if not text.strip():
            raise RequestError("There is no message: give one as an argument or on standard input.", param="prompt")
        with self._bridge:
            self._load(quiet=not self._notes.isatty())
            self._say(text)
            return self._answer(talk=False)

    def talk(self, read: Callable[[str], str], history: PromptHistory | None = None, first: str = "") -> int:
        """Answer messages from ``read`` (``input`` or alike) until it ends; ``first`` is sent before reading."""
        with self._bridge:
            self._load(quiet=False)
            self._note("Type a message, /help for the commands, Ctrl-D to leave.")
            if first.strip():
                self._say(first)
                self._answer(talk=True)
            interrupted = -AGAIN
            while True:
                try:
                    text = _read_message(read)
                except EOFError:
                    self._note("")
                    return 0
                except KeyboardInterrupt:
                    now = self._clock()
                    if now - interrupted < AGAIN:
                        self._note("")
                        return INTERRUPTED
                    interrupted = now
                    self._note("\nPress Ctrl-C again or Ctrl-D to leave.")
                    continue
                if not text.strip():
                    continue
                if history is not None:
                    history.add(text)
                if not self._handle(text):
                    return 0

    def _handle(self, text: str) -> bool:
        """Answer a message or carry out a command; False to leave."""
        if text.startswith("/") and not text.startswith("//"):
            try:
                return self._command(text)
            except MacspecError as error:
                self._note(error.message)
                return True
        self._say(text[1:] if text.startswith("//") else text)
        self._answer(talk=True)
        return True

    def _command(self, text: str) -> bool:
        name, _, rest = text[1:].partition(" ")
        rest = rest.strip()
        conversation = self.session.conversation
        if name in ("quit", "exit", "q"):
            return False
        if name == "help":
            self._note(_HELP)
        elif name == "new":
            self.session.close()
            self.session = self._fresh()
            self._note("A new conversation.")
        elif name == "retry":
            question = conversation.last("user")
            if question is None:
                raise RequestError("There is nothing to answer again yet.")
            conversation.head = question.id
            self._answer(talk=True)
        elif name == "undo":
            taken = conversation.rewind()
            self._keep(self.session.save_head)
            self._note("There is nothing to undo." if taken is None else "The last turn is taken back.")
        elif name == "system":
            self.session.set_system(rest)
            self._note("The system prompt is set." if rest else "The system prompt is empty now.")
        elif name == "think":
            choices = {"on": True, "off": False, "auto": None}
            if rest not in choices:
                raise RequestError("Use /think on, /think off or /think auto.")
            self.settings = self.settings.with_thinking(choices[rest])
            self._note(f"Thinking is {rest}.")
        elif name == "set":
            self._set(rest)
        elif name == "stats":
            last = conversation.last("assistant")
            self._note("No answer yet." if last is None or last.stats is None else figures.summary(last.stats))
        else:
            raise RequestError(f"There is no command /{name} here; /help lists them. Start with // to send a slash.")
        return True

    def _set(self, rest: str) -> None:
        if not rest:
            self._note("\n".join(f"{name} = {value}" for name, value in self.settings.shown()))
            return
        name, _, value = rest.replace("=", " ", 1).partition(" ")
        self.settings = self.settings.set(name, value.strip())
        self._note(f"{name} = {value.strip()}")
        if name.strip().lower() == "depth":
            self._explain_plain()

    def _fresh(self) -> Session:
        from macspec_tui.store import SessionStore

        return SessionStore(self.session.path.parent).new(self.session.conversation.system)

    def _load(self, *, quiet: bool) -> None:
        self._info = self._bridge.call(self._bridge.client.start(None if quiet else self._progress))
        self._explain_plain()
        if not quiet:
            drafter = f" with {self._info.drafter}" if self._info.drafter else ""
            self._note(f"{self._info.model}{drafter}, {figures.size(self._info.parameters_bytes)}.")

    def _explain_plain(self) -> None:
        missing = self.settings.without_drafter(self._info)
        if missing:
            self._note(missing)

    def _progress(self, step: LoadProgress) -> None:
        # One line per stage: a line that repaints itself is noise to a screen reader and in a log.
        if step.stage != self._stage:
            self._stage = step.stage
            self._note(figures.progress(step))

    def _say(self, text: str) -> None:
        message = self.session.conversation.say(text)
        self._keep(lambda: self.session.save(message))

    def _answer(self, *, talk: bool) -> int:
        """Answer the conversation as it stands. In a talk failures are notes; otherwise they are raised."""
        conversation = self.session.conversation
        draft = AnswerDraft(conversation.head, self._info.model if self._info else "")
        request = self.settings.request(conversation, self._info)
        answer = self._bridge.events(request)
        interrupted = False
        failure: MacspecError | None = None
        if talk:
            self._note("Answer:")
        while True:
            try:
                self._show(next(answer), draft)
            except StopIteration:
                break
            except MacspecError as error:
                failure = error
                break
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self._bridge.cancel(request)
        self._ended(draft, failure, talk=talk)
        if failure is not None and not talk:
            raise failure
        return INTERRUPTED if interrupted else 0

    def _show(self, event: Event, draft: AnswerDraft) -> None:
        thought = bool(draft.thinking)
        draft.take(event)
        if self._json:
            self._write(json.dumps(event_to_wire(event), ensure_ascii=False) + "\n")
        elif isinstance(event, Text) and event.text:
            if event.section == "answer":
                self._write(for_display(event.text))
            elif self._show_thinking:
                self._note(for_display(event.text), end="")
            elif not thought and self._notes.isatty():
                self._note("(thinking)")

    def _ended(self, draft: AnswerDraft, failure: MacspecError | None, *, talk: bool) -> None:
        if failure is not None:
            draft.fail()
        if not self._json and not draft.text.endswith("\n") and (draft.text or talk):
            self._write("\n")
        if draft.text or draft.thinking:
            message = self.session.conversation.add(draft.message())
            self._keep(lambda: self.session.save(message))
        ending = figures.ending(draft.reason)
        if ending and (talk or draft.reason == "length"):
            self._note(f"({ending})")
        if talk and failure is not None:
            self._note(failure.message)
        elif talk and draft.stats is not None:
            self._note(f"({figures.summary(draft.stats)})")

    def _keep(self, save: Callable[[], None]) -> None:
        if not self._save:
            return
        try:
            save()
        except SessionError as error:
            self._note(error.message)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _note(self, text: str, end: str = "\n") -> None:
        self._notes.write(text + end)
        self._notes.flush()


def _read_message(read: Callable[[str], str]) -> str:
    """One message: a line, and the following ones while each ends in a backslash."""
    lines = [read("You: ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        # No label: what is copied from the terminal should be what was typed.
        lines.append(read(""))
    return "\n".join(lines)


def line_reader(history: PromptHistory) -> Callable[[str], str]:
    """``input`` with line editing and the person's history; the label goes to where ``input`` puts it."""
    try:
        import readline
    except ImportError:
        return input
    readline.set_auto_history(False)
    for text in history.entries[-500:]:
        readline.add_history(text.replace("\n", " "))

    def read(label: str) -> str:
        line = input(label)
        if line.strip():
            readline.add_history(line)
        return line

    return read


def labelled_reader(notes: TextIO) -> Callable[[str], str]:
    """Reads lines when standard output is not a terminal: labels go to ``notes``, never into the answers."""

    def read(label: str) -> str:
        notes.write(label)
        notes.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    return read
