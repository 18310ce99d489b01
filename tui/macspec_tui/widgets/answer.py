"""One answer: its thinking, prose and code, and a line about how it ended. It grows while the model speaks."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as UiMessage
from textual.timer import Timer
from textual.widget import MountError
from textual.widgets import Static

from macspec_tui import figures
from macspec_tui.blocks import Cutter, joined, split
from macspec_tui.clean import for_display
from macspec_tui.conversation import Message
from macspec_tui.draft import AnswerDraft
from macspec_tui.runs import Run
from macspec_tui.widgets.code_block import CodeBlock
from macspec_tui.widgets.message_actions import MessageActions
from macspec_tui.widgets.prose import Prose
from macspec_tui.widgets.sizes import size_without_layout
from macspec_tui.widgets.thinking import ThinkingBlock

#: Least and most seconds between two updates of a growing answer; rarer reads badly, more often no better.
FLUSH_SECONDS = (0.1, 0.2)
#: Share of one core from which on the updates become rarer, because the engine and the person's keys need it too.
FLUSH_SHARE = 0.12


def pause(spent: float) -> float:
    """Seconds until the next update after one that took ``spent`` seconds of this process's time, drawing included."""
    least, most = FLUSH_SECONDS
    return min(max(spent / FLUSH_SHARE, least), most)


class AnswerView(MessageActions, Vertical):
    """An answer. A stored one is given whole; a growing one gets `append` and, once, `finish` (more often is harmless).

    Text arrives at the engine's pace and is only collected; a timer shows it.
    """

    virtual_size = size_without_layout()
    BINDINGS = [
        Binding("r", "retry", "answer again"),
        Binding("t", "thinking", "thinking"),
    ]

    class Retry(UiMessage):
        """The person wants another answer in the place of this one."""

        def __init__(self, message: Message) -> None:
            super().__init__()
            self.message = message

    class Grew(UiMessage):
        """New text is shown; what else changes with it is best drawn now, together with it."""

    def __init__(self, message: Message | None = None, version: tuple[int, int] = (1, 1)) -> None:
        super().__init__(classes="message answer")
        self.message = message
        self._version = version
        self._cutter = Cutter()
        self._waiting_text: list[str] = []
        self._waiting_thinking: list[str] = []
        self._prose: Prose | None = None
        self._code: CodeBlock | None = None
        self._timer: Timer | None = None
        self._draft: AnswerDraft | None = None
        self._finished = message is not None
        self._runs: list[Run] = []
        self._coloured = False
        self._flushing = asyncio.Lock()

    def compose(self) -> ComposeResult:
        if self.message is None:
            return
        message = self.message
        if message.thinking:
            tokens = message.stats.thinking_tokens if message.stats else 0
            yield ThinkingBlock(message.thinking, message.thinking_seconds, tokens)
        for block in split(message.text):
            if block.language is None:
                yield Prose(for_display(block.text))
            else:
                yield CodeBlock(block.language, block.text)
        yield self._foot()

    def render(self) -> str:
        # Without a child yet, Textual would show the name of the class.
        return ""

    def on_mount(self) -> None:
        if not self._finished:
            self._beat_after(0.0)

    def _beat_after(self, spent: float) -> None:
        self._timer = self.set_timer(pause(spent), partial(self._beat, time.process_time()))

    async def _beat(self, since: float) -> None:
        """Show what has arrived, and again after a pause that depends on the process's time from ``since`` on."""
        spent = time.process_time() - since
        if await self.flush():
            self.post_message(self.Grew())
        if not self._finished:
            self._beat_after(spent)

    def append(self, text: str, section: str) -> None:
        """Take text of the model; it is shown with the next flush."""
        (self._waiting_thinking if section == "thinking" else self._waiting_text).append(text)

    async def restart(self) -> None:
        """Forget what was shown: the answer starts again on another engine."""
        self._waiting_text.clear()
        self._waiting_thinking.clear()
        self._cutter, self._prose, self._code = Cutter(), None, None
        await self.remove_children()

    async def flush(self) -> bool:
        """Show what has arrived, and say whether anything had; once the chat is leaving nothing more is shown."""
        # The timer and the end of the answer may meet here.
        async with self._flushing:
            try:
                return await self._flush()
            except MountError:
                if self.is_attached:
                    raise
                return False

    async def _flush(self) -> bool:
        thinking, text = "".join(self._waiting_thinking), "".join(self._waiting_text)
        self._waiting_thinking.clear()
        self._waiting_text.clear()
        if thinking:
            await (await self._thoughts()).append(thinking)
        if text:
            self._close_thoughts()
            for piece in joined(self._cutter.feed(text)):
                await self._show(piece.kind, piece.text)
            if self._coloured:
                self._show_runs()
        return bool(thinking or text)

    async def finish(self, draft: AnswerDraft, message: Message | None, version: tuple[int, int] = (1, 1)) -> None:
        """The answer has ended; ``message`` is what was kept of it, None when nothing was said."""
        if self._finished:
            return
        self._finished = True
        self._draft = draft
        # Stopping a timer cancels what it is doing, so it must not be showing text just then.
        async with self._flushing:
            if self._timer is not None:
                self._timer.stop()
            await self._flush()
            self._close_thoughts()
            for piece in joined(self._cutter.finish()):
                await self._show(piece.kind, piece.text)
        self.message, self._version = message, version
        if message is not None:
            await self.mount(self._foot())

    def watch_draft(self, draft: AnswerDraft) -> None:
        """Read durations from a draft that is still growing."""
        self._draft = draft

    def set_version(self, version: tuple[int, int]) -> None:
        """Say which of how many versions this is."""
        self._version = version
        for foot in self.query(".answer-foot").results(Static):
            foot.update(Content(self._foot_text()))

    def set_runs(self, runs: list[Run], coloured: bool) -> None:
        """Show the origin of every token instead of Markdown, or Markdown again."""
        self._runs = runs
        self._coloured = coloured and (bool(runs) or not self._finished)
        self.set_class(self._coloured, "-runs")
        if self._coloured:
            self._show_runs()

    def toggle_thinking(self) -> bool:
        """Fold or unfold the thinking; False when there is none."""
        blocks = list(self.query(ThinkingBlock))
        for block in blocks:
            block.toggle()
        return bool(blocks)

    def action_thinking(self) -> None:
        self.toggle_thinking()

    def action_retry(self) -> None:
        if self.message is not None:
            self.post_message(self.Retry(self.message))

    async def _show(self, kind: str, text: str) -> None:
        if kind == "prose":
            if self._prose is None:
                if not text.strip():
                    return
                self._prose = Prose()
                await self.mount(self._prose)
            await self._prose.append(for_display(text))
        elif kind == "open":
            self._prose, self._code = None, CodeBlock(text)
            await self.mount(self._code)
        elif self._code is not None:
            if kind == "code":
                await self._code.append(text)
            else:
                self._code.finish()
                self._code = None

    async def _thoughts(self) -> ThinkingBlock:
        found = self.query(ThinkingBlock)
        if found:
            return found.first()
        block = ThinkingBlock(open=True)
        await self.mount(block, before=0)
        return block

    def _close_thoughts(self) -> None:
        for block in self.query(ThinkingBlock):
            draft = self._draft
            block.finish(draft.thinking_seconds if draft else 0.0, draft.thinking_tokens if draft else 0)

    def _show_runs(self) -> None:
        content = Content.assemble(*((for_display(run.text), _run_style(run)) for run in self._runs))
        shown = self.query(".runs-text").results(Static)
        widget = next(iter(shown), None)
        if widget is None:
            foot = next(iter(self.query(".answer-foot")), None)
            self.mount(Static(content, classes="runs-text"), before=foot)
        else:
            widget.update(content)

    def _foot(self) -> Static:
        return Static(Content(self._foot_text()), classes="answer-foot")

    def _foot_text(self) -> str:
        message = self.message
        parts: list[str] = []
        if self._version[1] > 1:
            parts.append(f"‹ {self._version[0]}/{self._version[1]} ›")
        if message is not None:
            ending = figures.ending(message.reason)
            if ending:
                parts.append(ending)
            if message.stats is not None:
                parts.append(figures.summary(message.stats))
        return " · ".join(parts)


def _run_style(run: Run) -> str:
    """Accepted drafts alternate between two looks; without colour too these and plain target tokens all differ."""
    if not run.drafted:
        return ""
    return "bold $text-success" if run.number % 2 else "underline $text-accent"
