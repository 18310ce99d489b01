"""The chat without its keys: conversation, panel, prompt and numbers. Answers run here, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import OptionList, TextArea

from macspec.errors import MacspecError, RequestError
from macspec.worker.protocol import EngineStats, LoadProgress
from macspec_tui import commands, figures, garbage
from macspec_tui.clean import pasted
from macspec_tui.conversation import Message
from macspec_tui.downloads import Download
from macspec_tui.finder import Finder, widget_at
from macspec_tui.live import LiveFigures
from macspec_tui.runs import Run
from macspec_tui.screens.chat_commands import ChatCommands
from macspec_tui.store import Session, SessionError
from macspec_tui.turn import Turn
from macspec_tui.widgets.activity import Activity
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.code_block import CodeBlock
from macspec_tui.widgets.completion_list import CompletionList
from macspec_tui.widgets.conversation import ConversationView
from macspec_tui.widgets.find_bar import FindBar
from macspec_tui.widgets.key_bar import KeyBar
from macspec_tui.widgets.prompt import Prompt
from macspec_tui.widgets.side_panel import SidePanel
from macspec_tui.widgets.status_line import StatusLine, status_parts
from macspec_tui.widgets.user_message import UserMessage
from macspec_tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from macspec_tui.app import ChatApp

#: Seconds between two updates of the numbers.
TICK = 0.25
#: Columns from which the panel is shown unless the person says otherwise.
PANEL_WIDTH = 110
#: Ticks between two looks at the engine's memory while it answers.
STATS_TICKS = 8


class ChatCore(Screen[None]):
    """Everything a person sees while chatting, and what happens when they send something."""

    app: ChatApp

    def __init__(self, session: Session, first: str = "", typed: str = "") -> None:
        super().__init__()
        self.session = session
        self.live = LiveFigures()
        self.engine_stats: EngineStats | None = None
        self.turn: Turn | None = None
        self.waiting: list[str] = []
        self.editing: Message | None = None
        self.finder = Finder()
        self.runs: dict[str, list[Run]] = {}
        self.coloured = False
        #: What loading is at, None once it has ended. (A screen's own ``loading`` would cover it.)
        self.loading_step: LoadProgress | None = None
        self.engine_loading = False
        #: What is being downloaded before the engine loads.
        self.download: Download | None = None
        self.commands = ChatCommands(self)
        #: The person has shown or hidden the panel, so the window's size no longer decides.
        self.panel_chosen = False
        self._first = first
        self._typed_before = typed
        self._ticks = 0
        self._ticked = -TICK
        self._engine_failed = False

    def compose(self) -> ComposeResult:
        with Horizontal(id="main"):
            with Vertical(id="left"):
                yield FindBar()
                yield Welcome()
                yield ConversationView(self._version)
                yield Activity()
                yield CompletionList()
                yield Prompt(self.app.history)
            yield SidePanel()
        yield StatusLine()
        yield KeyBar()

    async def on_mount(self) -> None:
        self.prompt.focus()
        self.prompt.put(pasted(self._typed_before))
        self.set_interval(TICK, self._tick_if_late)
        await self.show_session()
        self.load_engine(self.app.client.start)
        if self._first.strip():
            await self.submit(self._first)
        self.tick()

    # The parts by name.

    @property
    def conversation(self) -> ConversationView:
        """The scrolling messages."""
        return self.query_one(ConversationView)

    @property
    def prompt(self) -> Prompt:
        """Where the person types."""
        return self.query_one(Prompt)

    @property
    def panel(self) -> SidePanel:
        """The speculation panel."""
        return self.query_one(SidePanel)

    # Sessions.

    async def show_session(self) -> None:
        """Show the session from its end, with what a person should know about it."""
        conversation = self.session.conversation
        await self.conversation.show([])
        await self.conversation.show(conversation.path())
        if self.session.damaged:
            await self.note(
                f"{self.session.damaged} damaged lines of this conversation's file were left out.", "warning"
            )
        if conversation.unanswered() is not None:
            await self.note("The last message has no answer; /retry asks for one.", "warning")
        self.conversation.follow()

    async def open_session(self, session: Session) -> None:
        """Leave this session for another one."""
        self._return_waiting()
        self.session.close()
        self.session = session
        self.live = LiveFigures()
        self.runs.clear()
        self.set_editing(None)
        await self.show_session()
        self.tick()

    def keep(self, save: Callable[[], None]) -> None:
        """Save, and say so once when that fails; the conversation goes on."""
        try:
            save()
        except SessionError as error:
            self.app.notify(error.message, severity="error", timeout=10, markup=False)

    # The engine.

    def load_engine(self, load: Callable[..., object], download: Download | None = None) -> None:
        """Start, restart or change the engine with one of the client's methods, after a download if one is needed."""
        self.download = download
        self.engine_loading = True
        self.loading_step = LoadProgress("starting the engine")
        self.run_worker(self._load(load), group="load", exclusive=True)

    async def _load(self, load: Callable[..., object]) -> None:
        def progress(step: LoadProgress) -> None:
            self.loading_step = step
            self.tick()

        try:
            if self.download is not None:
                await self.download.run(progress)
                self.download = None
            info = await load(progress=progress)  # type: ignore[misc]  # one of three coroutine methods
        except MacspecError as error:
            await self.note(f"{error.message}\nF5 tries again; /model NAME loads another model.", "error")
            self._engine_failed = True
        else:
            self._engine_failed = False
            missing = self.app.settings.without_drafter(info)
            if missing:
                await self.note(missing, "warning")
        self.engine_loading = False
        self.loading_step = self.download = None
        if self._engine_failed:
            self._return_waiting()
        await self._read_stats()
        self.tick()
        await self._send_waiting()

    @property
    def engine_ready(self) -> bool:
        """Whether an answer can start now."""
        return not self.engine_loading and self.app.client.state == "ready"

    async def _read_stats(self) -> None:
        if not self.engine_ready:
            return
        try:
            self.engine_stats = await self.app.client.stats()
        except MacspecError:
            # Memory figures are not worth a message; the next answer reports a dead engine.
            self.engine_stats = None

    # Sending and answering.

    @on(Prompt.Submitted)
    async def _submitted(self, event: Prompt.Submitted) -> None:
        if not event.text.strip():
            return
        self.prompt.clear_all()
        self.app.history.add(event.text)
        await self.submit(event.text)

    async def submit(self, text: str) -> None:
        """Carry out a command or send a message."""
        self.conversation.follow()
        if commands.is_command(text):
            await self.commands.run(text)
        else:
            await self.send(commands.as_message(text))

    async def send(self, text: str) -> None:
        """Say something to the model; it waits while another answer runs or the engine loads."""
        if self.turn is not None or self.engine_loading:
            self.waiting.append(text)
            self.tick()
            return
        conversation = self.session.conversation
        if self.editing is not None:
            message = Message("user", text, parent=self.editing.parent)
            self.set_editing(None)
            conversation.add(message)
            await self.conversation.show(conversation.path())
        else:
            message = conversation.say(text)
            await self.conversation.add(message)
        self.keep(lambda: self.session.save(message))
        self.start_answer(message, new=True)

    def start_answer(self, question: Message, *, new: bool) -> None:
        """Answer ``question``, the last message of the shown branch; ``new`` when it was said just now."""
        info = self.app.client.info
        try:
            request = self.app.settings.request(self.session.conversation, info)
        except RequestError as error:
            self.app.notify(error.message, severity="error", markup=False)
            self._return_waiting()
            return
        self.turn = Turn(self.app.client, request, question, self.live, info.model if info else "")
        self.run_worker(self._answer(self.turn, new), group="answer")
        self.tick()

    async def _answer(self, turn: Turn, new: bool) -> None:
        view = await self.conversation.begin_answer()
        view.watch_draft(turn.draft)
        view.set_runs(turn.recorder.runs, self.coloured)
        self.conversation.follow()
        failure = await turn.run(view)
        await self.finish_turn(turn, view, failure, new)

    async def finish_turn(self, turn: Turn, view: AnswerView, failure: MacspecError | None, new: bool) -> None:
        """Keep what was said, or take back a question that got no answer at all."""
        conversation = self.session.conversation
        message = None
        if turn.keeps_answer:
            message = conversation.add(turn.draft.message())
            self.runs[message.id] = turn.recorder.runs
            self.keep(lambda: self.session.save(message))
        await view.finish(turn.draft, message, self._version(message) if message else (1, 1))
        await self.conversation.end_answer(view, message)
        if message is None:
            await self._take_back(turn, failure, new)
        if failure is not None:
            await self.note(_with_advice(failure, kept=message is not None), "error")
        # Only now, so that nothing is sent while the question is being taken back.
        if self.turn is turn:
            self.turn = None
        if failure is not None or turn.stopping:
            self._return_waiting()
        await self._read_stats()
        self.tick()
        self.call_after_refresh(garbage.collect)
        await self._send_waiting()

    async def _take_back(self, turn: Turn, failure: MacspecError | None, new: bool) -> None:
        """Nothing was said. A new question goes back to the prompt if it was stopped or refused; else it stays."""
        conversation = self.session.conversation
        if new and (failure is None or isinstance(failure, RequestError)):
            conversation.remove(turn.question)
            self.keep(lambda: self.session.save_removal(turn.question))
            if turn.question.parent is not None:
                conversation.select(turn.question.parent)
            if not self.prompt.text:
                self.prompt.put(turn.question.text)
        else:
            conversation.select(turn.question.id)
        self.keep(self.session.save_head)
        await self.conversation.show(conversation.path())

    async def stop_answer(self) -> None:
        """Stop the running answer and keep what was said."""
        if self.turn is not None and not self.turn.stopping:
            await self.turn.stop()
            self.tick()

    def _return_waiting(self) -> None:
        """What was typed ahead goes back to the prompt: its answer might be unwanted now, or nothing would send it."""
        if not self.waiting:
            return
        text = "\n\n".join([*self.waiting, *([self.prompt.full_text] if self.prompt.text else [])])
        self.waiting.clear()
        self.prompt.put(text)

    async def _send_waiting(self) -> None:
        if self.waiting and self.turn is None and not self.engine_loading:
            text = self.waiting.pop(0)
            self.conversation.follow()
            await self.send(text)

    # Versions, editing, notes.

    def _version(self, message: Message) -> tuple[int, int]:
        names = self.session.conversation.siblings(message.id)
        return names.index(message.id) + 1, len(names)

    async def show_version(self, message: Message, step: int) -> None:
        """Show the version of a message that is ``step`` before or after it."""
        conversation = self.session.conversation
        names = conversation.siblings(message.id)
        at = names.index(message.id) + step
        if self.turn is not None or not 0 <= at < len(names):
            return
        conversation.select(names[at])
        self.keep(self.session.save_head)
        await self.conversation.show(conversation.path())
        widget = self.conversation.widget_of(conversation.messages[names[at]])
        if widget is not None:
            widget.focus()

    def set_editing(self, message: Message | None) -> None:
        """The next message replaces this one as a new version; None ends that."""
        self.editing = message
        self.tick()

    async def note(self, text: str, kind: str = "info") -> None:
        """Say something in the conversation that the model does not see."""
        await self.conversation.note(text, kind)

    async def find_step(self, text: str, step: int) -> None:
        """Show the next place of ``text``."""
        place = self.finder.step(text, step, self.session.conversation.path())
        self.query_one(FindBar).count(*self.finder.position)
        for widget in self.query(".found"):
            widget.remove_class("found")
        if place is None:
            return
        view = await self.conversation.reveal(place.message)
        if view is not None:
            target = widget_at(view, text, place.number)
            target.add_class("found")
            self.call_after_refresh(target.scroll_visible, animate=False)

    # What is shown about the state.

    def key_entries(self) -> list[tuple[str, str, str]]:
        """Key, meaning and action for the key line, the most useful now first."""
        return []

    def toggle_panel(self) -> None:
        """Show or hide the speculation panel."""
        self.panel.display = not self.panel.display
        self.panel_chosen = True
        self.tick()

    def _tick_if_late(self) -> None:
        # While text grows the numbers are drawn with it: drawing twice costs twice. A timer may be a little early.
        if time.monotonic() - self._ticked >= 0.9 * TICK:
            self.tick()

    def tick(self) -> None:
        """Bring the lines and the panel up to date."""
        if not self.is_mounted:
            return
        self._ticked = time.monotonic()
        self._ticks += 1
        if self.turn is not None and self._ticks % STATS_TICKS == 0:
            self.run_worker(self._read_stats(), group="stats", exclusive=True)
        info = self.app.client.info
        self.query_one(StatusLine).show(status_parts(info, self.live, self.engine_stats, self._state()))
        welcome = self.query_one(Welcome)
        welcome.show(info)
        welcome.display = not self.conversation.children
        self.conversation.display = not welcome.display
        self.query_one(Activity).show(*self._activity())
        self.query_one(KeyBar).show(self.key_entries())
        if self.panel.display:
            self.panel.show(info, self.live, self.engine_stats)
        if self.focused is self.prompt:
            # Textual moves the terminal's cursor with typing only, but lines come and go above the prompt.
            self.app.cursor_position = self.prompt.cursor_screen_offset

    def _state(self) -> str:
        if self.engine_loading:
            return "loading"
        state = self.app.client.state
        return {"loading": "restarting", "failed": "engine stopped: F5", "stopped": "engine stopped: F5"}.get(state, "")

    def _activity(self) -> tuple[str, float | None]:
        parts: list[str] = []
        share: float | None = None
        step = self.loading_step
        if self.engine_loading and step is not None:
            parts.append(figures.progress(step))
            share = step.done / step.total if step.total else None
        elif self.turn is not None:
            text, share = self._turn_activity(self.turn)
            parts.append(text)
        if self.editing is not None:
            parts.append("editing an earlier message (Esc leaves it)")
        if self.waiting:
            parts.append(f"{len(self.waiting)} typed ahead")
        if not self.conversation.following and self.turn is not None:
            parts.append("↓ new text: Ctrl+End")
        return " · ".join(part for part in parts if part), share

    def _turn_activity(self, turn: Turn) -> tuple[str, float | None]:
        live = self.live
        if turn.stopping:
            return "stopping", None
        if live.prefilling and live.prompt_tokens:
            done, total = figures.tokens(live.prefill_done), figures.tokens(live.prompt_tokens)
            return f"reading the prompt: {done} of {total} tokens", live.prefill_done / live.prompt_tokens
        if turn.draft.empty:
            return "waiting for the first words", None
        if turn.draft.thinking and not turn.draft.text:
            return f"thinking for {figures.seconds(turn.draft.thinking_seconds)}", None
        return "answering", None

    # Events of the parts.

    @on(TextArea.Changed)
    def _typed(self) -> None:
        if self.is_mounted:
            proposals = commands.complete(self.prompt.text, self.commands.arguments)
            self.query_one(CompletionList).propose(proposals)
            self.prompt.completing = bool(proposals)

    @on(Prompt.CompletionKey)
    async def _completion_key(self, event: Prompt.CompletionKey) -> None:
        options = self.query_one(CompletionList)
        if event.key == "up":
            options.action_cursor_up()
        elif event.key == "down":
            options.action_cursor_down()
        elif options.chosen is not None:
            await self.accept(options.chosen, run=event.key == "enter")

    @on(OptionList.OptionSelected, "#completions")
    async def _completion_clicked(self, event: OptionList.OptionSelected) -> None:
        await self.accept(self.query_one(CompletionList).proposals[event.option_index], run=False)

    async def accept(self, completion: commands.Completion, *, run: bool) -> None:
        """Take a proposal; ``run`` also sends a command that is complete as it was typed or needs nothing more."""
        typed = self.prompt.text
        if run and (not completion.insert.endswith(" ") or typed == completion.insert.rstrip()):
            complete = typed if typed == completion.insert.rstrip() else completion.insert
            self.prompt.put(complete)
            self.close_completions()
            self.prompt.submit()
            return
        self.prompt.put(completion.insert)

    def close_completions(self) -> None:
        """Hide the proposals until the text changes."""
        self.query_one(CompletionList).propose([])
        self.prompt.completing = False

    @on(Prompt.LeaveUp)
    def _leave_up(self) -> None:
        self.conversation.focus_last()

    @on(AnswerView.Copy)
    def _copy_message(self, event: AnswerView.Copy) -> None:
        self.app.copy_to_clipboard(event.message.text)

    @on(CodeBlock.Copy)
    def _copy_code(self, event: CodeBlock.Copy) -> None:
        self.app.copy_to_clipboard(event.code)

    @on(AnswerView.Version)
    async def _other_version(self, event: AnswerView.Version) -> None:
        await self.show_version(event.message, event.step)

    @on(AnswerView.Retry)
    async def _retry(self, event: AnswerView.Retry) -> None:
        await self.commands.attempt(self.commands.retry(event.message))

    @on(UserMessage.Edit)
    async def _edit(self, event: UserMessage.Edit) -> None:
        await self.commands.attempt(self.commands.start_edit(event.message))

    @on(FindBar.Step)
    async def _find(self, event: FindBar.Step) -> None:
        await self.find_step(event.text, event.step)

    @on(FindBar.Closed)
    def _find_closed(self) -> None:
        for widget in self.query(".found"):
            widget.remove_class("found")
        self.prompt.focus()

    @on(KeyBar.Clicked)
    async def _key_clicked(self, event: KeyBar.Clicked) -> None:
        await self.run_action(event.action)

    @on(AnswerView.Grew)
    def _grew(self) -> None:
        self.tick()

    @on(ConversationView.Following)
    def _following(self) -> None:
        self.tick()

    def on_descendant_focus(self) -> None:
        self.tick()

    def on_resize(self) -> None:
        self.set_class(self.size.height < 20, "-short")
        if not self.panel_chosen:
            self.panel.display = self.size.width >= PANEL_WIDTH


def _with_advice(failure: MacspecError, *, kept: bool) -> str:
    """A failure with what to do next."""
    if isinstance(failure, RequestError):
        return failure.message
    stays = "What was said so far is kept. " if kept else ""
    return f"{failure.message}\n{stays}/retry asks again; F5 starts the engine again if it does not come back."
