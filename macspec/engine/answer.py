"""The text side of an answer: where it ends, and the events that carry it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from macspec.engine.rounds import Committed
from macspec.engine.sampling import Chooser
from macspec.engine.stopping import StopWatcher
from macspec.engine.text import Detokenizer
from macspec.request import Event, GenerationRequest, Text, TokenInfo


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
        self.detokenizer = Detokenizer(tokenizer)
        self.watcher = StopWatcher(sampling.stop)
        self.matched_stop: str | None = None
        self.stopped = False
        self.thinking_tokens = 0
        self._text = ""
        self._tokenizer = tokenizer

    def ends(self, tokens: Sequence[int]) -> int | None:
        """Take in the tokens of a round; how many belong to the answer when it ends among them, else None."""
        for number, token in enumerate(tokens, start=1):
            if token in self.stop_ids:
                self.stopped = True
                self.matched_stop = self._tokenizer.decode([token])
                return number
            text, matched = self.watcher.feed(self.detokenizer.add(token))
            self._text += text
            if matched is not None:
                self.stopped, self.matched_stop = True, matched
                return number
        return None

    def events(self, committed: Committed) -> Iterator[Event]:
        """The text a round added, with its tokens."""
        text, self._text = self._text, ""
        yield Text(self.index, text=text, tokens=self._infos(committed))

    def finish(self) -> Iterator[Event]:
        """Text that was held back until it was certain."""
        if self.matched_stop is None or self._text:
            rest, matched = self.watcher.feed(self.detokenizer.finish())
            rest = self._text + rest + ("" if matched else self.watcher.flush())
            self._text = ""
            if rest:
                yield Text(self.index, text=rest)

    def _infos(self, committed: Committed) -> tuple[TokenInfo, ...]:
        if self.sampling.logprobs is None:
            return tuple(TokenInfo(token) for token in committed.tokens)
        infos = []
        for row, token in enumerate(committed.tokens):
            own, top = self.chooser.logprobs(committed.logits[row], token, self.sampling.logprobs)
            infos.append(self._info(token, own, tuple(self._info(other, value) for other, value in top)))
        return tuple(infos)

    def _info(self, token: int, logprob: float, top: tuple[TokenInfo, ...] = ()) -> TokenInfo:
        text = self._tokenizer.decode([token])
        return TokenInfo(token, text, text.encode("utf-8", "replace"), logprob, top)
