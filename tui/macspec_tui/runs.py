"""Which parts of an answer the drafter guessed right: runs of text that came as accepted drafts or as target tokens."""

from __future__ import annotations

from dataclasses import dataclass

from macspec.request import Event, Round, Started, Text


@dataclass(slots=True)
class Run:
    """Text of one origin. ``number`` counts the rounds, so that neighbouring accepted runs can be told apart."""

    text: str
    drafted: bool
    number: int


class RunRecorder:
    """Collects the runs of one answer from its events. Thinking is left out, as it is from the answer."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._accepted = 0
        self._round = 0

    def take(self, event: Event) -> None:
        """Account for one event."""
        if isinstance(event, Started):
            self.runs.clear()
        elif isinstance(event, Round):
            self._accepted, self._round = event.accepted, self._round + 1
        elif isinstance(event, Text) and event.section == "answer" and event.text:
            self._text(event)

    def _text(self, event: Text) -> None:
        texts = [token.text for token in event.tokens]
        if "".join(texts) != event.text:
            # Characters straddle tokens, or a stop string was cut: the event is one run of its majority.
            self._add(event.text, 2 * self._accepted > len(texts))
            return
        cut = len("".join(texts[: self._accepted]))
        self._add(event.text[:cut], True)
        self._add(event.text[cut:], False)

    def _add(self, text: str, drafted: bool) -> None:
        if not text:
            return
        last = self.runs[-1] if self.runs else None
        if last is not None and last.drafted == drafted and (not drafted or last.number == self._round):
            last.text += text
        else:
            self.runs.append(Run(text, drafted, self._round))
