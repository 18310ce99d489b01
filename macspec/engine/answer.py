"""The text side of an answer: where it ends, and the events that carry it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from macspec.engine.rounds import Committed
from macspec.engine.sampling import Chooser
from macspec.engine.sections import ParsedCall, Pieces, Sections
from macspec.engine.vocabulary import Vocabulary
from macspec.request import Event, GenerationRequest, Text, TokenInfo, ToolCall


class Answer:
    """Turns committed tokens into text and decides where the answer ends."""

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        tokenizer: Any,
        eos: frozenset[int],
        prompt: Sequence[int],
        chooser: Chooser,
    ) -> None:
        sampling = request.sampling
        self.index, self.sampling, self.chooser = index, sampling, chooser
        self.stop_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos)
        self.matched_stop: str | None = None
        self.stopped = False
        #: A stop string ended the answer: what follows it in the same token is not shown.
        self._cut = False
        self._sections = Sections(tokenizer, prompt, stops=sampling.stop, tools=request.tools)
        self._vocabulary = Vocabulary.of(tokenizer)
        self._parts: list[tuple[str, str] | ParsedCall] = []
        self._request_id, self._calls = request.id, 0

    @property
    def thinking_tokens(self) -> int:
        """Tokens inside thinking sections, closing markers included."""
        return self._sections.thinking_tokens

    def ends(self, tokens: Sequence[int]) -> int | None:
        """Take in the tokens of a round; how many belong to the answer when it ends among them, else None."""
        for number, token in enumerate(tokens, start=1):
            if token in self.stop_ids:
                self.stopped = True
                self.matched_stop = self._vocabulary.decode([token], hide_special=False)
                return number
            if self._take(self._sections.add(token)):
                return number
        return None

    def events(self, committed: Committed) -> Iterator[Event]:
        """The text and tool calls a round added; the first text event has the round's tokens."""
        yield from self._events(self._infos(committed))

    def finish(self) -> Iterator[Event]:
        """What was held back until it was certain."""
        if not self._cut:
            self._take(self._sections.finish(complete=self.stopped or self.chooser.must_stop()))
        if self._parts:
            yield from self._events(())

    def _take(self, pieces: Pieces) -> bool:
        """Keep the pieces for the next events; whether a stop string ended the answer."""
        self._parts.extend(pieces.parts)
        if pieces.matched is None:
            return False
        self.stopped = self._cut = True
        self.matched_stop = pieces.matched
        return True

    def _events(self, infos: tuple[TokenInfo, ...]) -> Iterator[Event]:
        parts, self._parts = _joined(self._parts), []
        if infos and not (parts and isinstance(parts[0], Text)):
            parts.insert(0, Text())
        for part in parts:
            if isinstance(part, Text):
                yield Text(self.index, text=part.text, section=part.section, tokens=infos)
                infos = ()
            else:
                call_id = part.call_id or f"call_{self._request_id}_{self.index}_{self._calls}"
                self._calls += 1
                yield ToolCall(self.index, call_id=call_id, name=part.name, arguments=part.arguments)

    def _infos(self, committed: Committed) -> tuple[TokenInfo, ...]:
        if self.sampling.logprobs is None:
            return tuple(TokenInfo(token) for token in committed.tokens)
        rows = self.chooser.logprob_rows(committed.logits, committed.tokens, self.sampling.logprobs)
        return tuple(
            self._info(token, own, tuple(self._info(other, value) for other, value in top))
            for token, (own, top) in zip(committed.tokens, rows, strict=True)
        )

    def _info(self, token: int, logprob: float, top: tuple[TokenInfo, ...] = ()) -> TokenInfo:
        raw = self._vocabulary.raw(token) or b""
        return TokenInfo(token, raw.decode("utf-8", "replace"), raw, logprob, top)


def _joined(parts: list[tuple[str, str] | ParsedCall]) -> list[Text | ParsedCall]:
    """Neighbouring texts of one section as one."""
    joined: list[Text | ParsedCall] = []
    for part in parts:
        if isinstance(part, ParsedCall):
            joined.append(part)
            continue
        section, text = part
        if joined and isinstance(last := joined[-1], Text) and last.section == section:
            joined[-1] = Text(text=last.text + text, section=last.section)
        else:
            joined.append(Text(text=text, section="thinking" if section == "thinking" else "answer"))
    return joined
