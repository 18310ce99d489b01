"""What the slash commands do in the chat."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from macspec.errors import MacspecError, RequestError
from macspec_tui import commands, downloads, export, figures, themes
from macspec_tui.blocks import code_blocks
from macspec_tui.context import measure
from macspec_tui.conversation import Message
from macspec_tui.screens.confirm import Confirm
from macspec_tui.widgets.answer import AnswerView
from macspec_tui.widgets.find_bar import FindBar

if TYPE_CHECKING:
    from macspec_tui.screens.chat_core import ChatCore


class ChatCommands:
    """Runs commands on a chat screen; each is a method ``do_NAME`` that takes the rest of the line."""

    def __init__(self, screen: ChatCore) -> None:
        self._screen = screen
        self.arguments: dict[str, commands.Arguments] = {
            "set": self._settings,
            "theme": lambda words: [] if words else [(name, "") for name in themes.NAMES],
            "think": lambda words: [] if words else [("on", ""), ("off", ""), ("auto", "as the model's template")],
            "export": lambda words: [] if words else [("md", "Markdown"), ("json", "JSON with all numbers")],
            "copy": self._copies,
        }

    async def run(self, text: str) -> None:
        """Run the command in ``text``; what goes wrong becomes a note."""
        await self.attempt(self._run(text))
        self._screen.tick()

    async def attempt(self, work: Awaitable[None]) -> None:
        """Do what a command, a key or a click asks for; what goes wrong becomes a note."""
        try:
            await work
        except MacspecError as error:
            await self._screen.note(error.message, "error")

    async def _run(self, text: str) -> None:
        command, rest = commands.parse(text)
        if not command.while_answering and self._screen.turn is not None:
            raise RequestError(f"/{command.name} waits for the answer to end; Esc stops it.")
        await getattr(self, f"do_{command.name}")(rest)

    async def do_help(self, _rest: str) -> None:
        from macspec_tui.screens.help import HelpScreen

        self._screen.app.push_screen(HelpScreen())

    async def do_new(self, _rest: str) -> None:
        screen = self._screen
        await screen.open_session(screen.app.store.new(screen.session.conversation.system))

    async def do_model(self, rest: str) -> None:
        screen = self._screen
        if rest:
            model, _, drafter = rest.partition(" ")
            await self._load_model(model, drafter.strip() or None)
            return
        info = screen.app.client.info
        if info is None:
            raise RequestError("No model is loaded yet. /model NAME loads one.")
        lines = [
            f"{info.model} {info.revision[:12]}".rstrip(),
            f"{figures.size(info.parameters_bytes)} {info.dtype} on {info.device or 'this machine'}",
            f"context {info.max_context:,} tokens, thinking {'yes' if info.thinking else 'no'}",
            f"drafter {info.drafter} ({info.kind}), up to {info.max_depth} draft tokens, policy {info.policy}"
            if info.drafter
            else figures.without_drafter(info),
        ]
        await screen.note("\n".join(lines))

    async def _load_model(self, model: str, drafter: str | None) -> None:
        """Load a model, after asking where it has to be downloaded first."""
        screen = self._screen
        load = partial(screen.app.client.load, model, drafter)
        download = await downloads.needed(model, drafter)
        if download is None:
            screen.load_engine(load)
            return

        async def decide(agreed: bool | None) -> None:
            if agreed:
                screen.load_engine(load, download)
            else:
                await screen.note("Nothing was downloaded.")

        screen.app.push_screen(Confirm(download.question()), decide)

    async def do_system(self, rest: str) -> None:
        screen = self._screen
        if not rest:
            await screen.note(screen.session.conversation.system or "There is no system prompt.")
            return
        text = "" if rest == "-" else rest
        screen.keep(lambda: screen.session.set_system(text))
        await screen.note("The system prompt is set." if text else "The system prompt is empty now.")

    async def do_set(self, rest: str) -> None:
        app = self._screen.app
        name, _, value = rest.replace("=", " ", 1).partition(" ")
        rows = app.settings.shown()
        if not rest:
            width = max(len(name) for name, _ in rows)
            await self._screen.note("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
        elif not value.strip():
            known = dict(rows)
            if name not in known:
                raise RequestError(f"There is no setting {name}; /set lists them.")
            await self._screen.note(f"{name} is {known[name]}.")
        else:
            app.settings = app.settings.set(name, value.strip())
            await self._screen.note(f"{name} is {dict(app.settings.shown()).get(name, value.strip())}.")
            missing = app.settings.without_drafter(app.client.info) if name.strip().lower() == "depth" else ""
            if missing:
                await self._screen.note(missing, "warning")

    async def do_retry(self, _rest: str) -> None:
        last = self._screen.session.conversation.last("user")
        if last is None:
            raise RequestError("There is nothing to answer again yet.")
        await self._answer_again(last)

    async def retry(self, answer: Message) -> None:
        """Answer again what ``answer`` answered."""
        conversation = self._screen.session.conversation
        if self._screen.turn is None and answer.parent is not None:
            await self._answer_again(conversation.messages[answer.parent])

    async def _answer_again(self, question: Message) -> None:
        screen = self._screen
        if not screen.engine_ready:
            raise RequestError("The engine is not ready; wait for it, or press F5 to start it again.")
        conversation = screen.session.conversation
        conversation.head = question.id
        await screen.conversation.show(conversation.path())
        screen.prompt.focus()
        screen.start_answer(question, new=False)

    async def do_edit(self, rest: str) -> None:
        said = [message for message in self._screen.session.conversation.path() if message.role == "user"]
        if not said:
            raise RequestError("There is no message to edit yet.")
        if rest and not (rest.isascii() and rest.isdigit() and 1 <= int(rest) <= len(said)):
            raise RequestError(f"Give the number of your message, from 1 to {len(said)}.")
        await self.start_edit(said[int(rest) - 1 if rest else -1])

    async def start_edit(self, message: Message) -> None:
        """Put a message into the prompt; what is sent next becomes its new version."""
        screen = self._screen
        if screen.turn is not None:
            raise RequestError("Wait for the answer to end, or stop it with Esc.")
        screen.prompt.put(message.text)
        screen.prompt.focus()
        screen.set_editing(message)

    async def do_undo(self, _rest: str) -> None:
        screen = self._screen
        taken = screen.session.conversation.rewind()
        if taken is None:
            raise RequestError("There is nothing to undo.")
        screen.keep(screen.session.save_head)
        await screen.conversation.show(screen.session.conversation.path())
        if not screen.prompt.text:
            screen.prompt.put(taken.text)

    async def do_copy(self, rest: str) -> None:
        screen = self._screen
        conversation = screen.session.conversation
        if rest == "all":
            screen.app.copy_to_clipboard(export.as_markdown(conversation))
            return
        answer = screen.turn.draft.text if screen.turn else None
        if not answer:
            last = conversation.last("assistant")
            answer = last.text if last else ""
        if rest:
            blocks = code_blocks(answer)
            if not (rest.isascii() and rest.isdigit() and 1 <= int(rest) <= len(blocks)):
                have = f"has {figures.counted(len(blocks), 'code block')}" if blocks else "has no code block"
                raise RequestError(f"The last answer {have}; /copy copies all of it.")
            answer = blocks[int(rest) - 1].text
        screen.app.copy_to_clipboard(answer)

    async def do_export(self, rest: str) -> None:
        session = self._screen.session
        kind, _, target = rest.partition(" ")
        path = export.export(session.conversation, kind, target.strip(), f"macspec-{session.id}")
        await self._screen.note(f"Written to {path}.")

    async def do_save(self, rest: str) -> None:
        session = self._screen.session
        if rest:
            self._screen.keep(lambda: session.set_title(rest))
        session.save_unsaved()
        if session.stored:
            named = f" as “{rest}”" if rest else ""
            await self._screen.note(
                f"Saved{named} in {session.path}.\nContinue it with: macspec chat --resume {session.id}"
            )
        else:
            await self._screen.note("There is nothing to save yet; every turn is saved by itself.")

    async def do_sessions(self, rest: str) -> None:
        from macspec_tui.screens.sessions import SessionsScreen

        screen = self._screen

        async def choose(name: str | None) -> None:
            if name is None or name == screen.session.id:
                return
            await self.attempt(self._open(name))

        screen.app.push_screen(SessionsScreen(screen.app.store, screen.session.id, rest), choose)

    async def _open(self, name: str) -> None:
        screen = self._screen
        if screen.turn is not None:
            # A message typed ahead was sent while the list was shown.
            raise RequestError("Another conversation opens when the answer has ended; Esc stops it.")
        session = screen.app.store.load(name)
        session.lock()
        await screen.open_session(session)

    async def do_think(self, rest: str) -> None:
        choices: dict[str, bool | None] = {"on": True, "off": False, "auto": None}
        if rest not in choices:
            raise RequestError("Use /think on, /think off or /think auto.")
        app = self._screen.app
        app.settings = app.settings.with_thinking(choices[rest])
        info = app.client.info
        if choices[rest] and info is not None and not info.thinking:
            await self._screen.note(f"{info.model} cannot think: its chat template has no place for it.", "warning")
        else:
            await self._screen.note(f"Thinking is {rest} from the next answer on.")

    async def do_context(self, _rest: str) -> None:
        screen = self._screen
        info = screen.app.client.info
        if info is None or not screen.engine_ready:
            raise RequestError("The engine is not ready; its tokenizer counts the context.")
        use = await measure(screen.app.client, screen.app.settings, screen.session.conversation)
        await screen.note(use.text(info.max_context))

    async def do_stats(self, _rest: str) -> None:
        screen = self._screen
        last = screen.session.conversation.last("assistant")
        lines = []
        if last is not None and last.stats is not None:
            lines.append("Last answer: " + figures.summary(last.stats))
            lines += figures.spent(last.stats)
        if screen.engine_ready:
            lines += figures.engine_lines(await screen.app.client.stats())
        await screen.note("\n".join(lines) or "No answer yet.")

    async def do_theme(self, rest: str) -> None:
        if not rest:
            await self._screen.note(f"The theme is {self._screen.app.theme_name}; there are {', '.join(themes.NAMES)}.")
            return
        self._screen.app.use_theme(rest)

    async def do_find(self, rest: str) -> None:
        self._screen.query_one(FindBar).open(rest)
        if rest:
            await self._screen.find_step(rest, 1)

    async def do_panel(self, _rest: str) -> None:
        self._screen.toggle_panel()

    async def do_runs(self, _rest: str) -> None:
        screen = self._screen
        screen.coloured = not screen.coloured
        for view in screen.conversation.query(AnswerView):
            if view.message is not None:
                view.set_runs(screen.runs.get(view.message.id, []), screen.coloured)
            elif screen.turn is not None:
                view.set_runs(screen.turn.recorder.runs, screen.coloured)
        screen.app.notify(
            "Coloured: tokens the drafter guessed; plain: the model's own." if screen.coloured else "Markdown again."
        )

    async def do_restart(self, _rest: str) -> None:
        screen = self._screen
        if screen.engine_loading:
            raise RequestError("The engine is loading already.")
        screen.load_engine(screen.app.client.restart)

    async def do_quit(self, _rest: str) -> None:
        await self._screen.app.action_quit()

    def _settings(self, words: Sequence[str]) -> Iterable[tuple[str, str]]:
        return [] if words else self._screen.app.settings.known()

    def _copies(self, words: Sequence[str]) -> Iterable[tuple[str, str]]:
        last = self._screen.session.conversation.last("assistant")
        if words or last is None:
            return []
        blocks = code_blocks(last.text)
        numbered = [(str(number), block.language or "text") for number, block in enumerate(blocks, 1)]
        return [*numbered, ("all", "the whole conversation as Markdown")]
