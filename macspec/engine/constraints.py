"""Which tokens are allowed in each row along a draft: grammar, thinking, allowed and banned tokens together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from macspec.engine.grammar import GrammarState, Mask
from macspec.engine.thinking import ThinkingTracker
from macspec.errors import RequestError


class Constraints:
    """State of one answer's constraints that depend on its tokens."""

    def __init__(
        self,
        vocab: int,
        grammar: GrammarState | None,
        thinking: ThinkingTracker | None,
        *,
        allowed: Mask | None,
        endings: Sequence[int],
        may_think: bool = True,
    ) -> None:
        """Combine what constrains an answer.

        Args:
            grammar: constrains the text outside of thinking sections.
            thinking: forces their end when the budget is used up.
            allowed: tokens that may be chosen at all ``[vocab]``; None allows every token.
            endings: tokens held back in early rows.
            may_think: a thinking section may come before the grammar begins.
        """
        self._vocab, self._grammar, self._thinking = vocab, grammar, thinking
        self._allowed = allowed
        self._endings = np.array(list(endings), dtype=np.int64)
        self._may_think = may_think
        #: Tokens the grammar has consumed; thinking may only come before the first.
        self._consumed = 0

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        return self._grammar is not None and self._grammar.finished and not self._inside(self._thinking)

    @property
    def needs_tokens(self) -> bool:
        """Whether the masks depend on the tokens at all."""
        return self._grammar is not None or self._thinking is not None

    def along(self, draft: Sequence[int], rows: int, early: int) -> list[Mask | None]:
        """Masks of the rows that can be reached, at most ``rows``; None allows everything.

        A row after a draft token that is not allowed, or after the end of the answer, cannot be reached: the list ends
        before it. In the first ``early`` rows the endings are held back, unless nothing else is allowed.

        Raises:
            RequestError: nothing may follow the committed tokens.
        """
        masks: list[Mask | None] = []
        thinking = self._thinking.copy() if self._thinking is not None else None
        before = self._consumed
        try:
            for row in range(rows):
                mask = self._mask(thinking, hold_back=row < early)
                if mask is not None and not mask.any():
                    if row == 0:
                        raise RequestError(
                            "The grammar and allowed_tokens, banned_tokens or the thinking budget together leave no "
                            "token to go on with; loosen one of them.",
                            param="grammar" if self._grammar is not None else "thinking_budget",
                        )
                    break
                masks.append(mask)
                if row >= len(draft) or (mask is not None and not mask[draft[row]]):
                    break
                if not self._advance(thinking, draft[row]):
                    break
                if self._grammar is not None and self._grammar.finished and not self._inside(thinking):
                    break
        finally:
            if self._grammar is not None:
                self._grammar.undo(self._consumed - before)
                self._consumed = before
        return masks

    def commit(self, tokens: Sequence[int]) -> None:
        """Take tokens into the answer."""
        for token in tokens:
            if not self._advance(self._thinking, token):
                raise RuntimeError(f"Token {token} was chosen although the grammar does not allow it.")

    def _mask(self, thinking: ThinkingTracker | None, *, hold_back: bool) -> Mask | None:
        forced = self._forced(thinking)
        if forced is not None:
            mask = np.zeros(self._vocab, dtype=np.bool_)
            mask[forced] = True
        elif self._grammar is None or self._inside(thinking):
            return None
        else:
            mask = self._grammar.mask()
            if thinking is not None and self._can_open(thinking):
                mask[thinking.start[0]] = True
        if self._allowed is not None:
            mask &= self._allowed
        if hold_back:
            ended = mask[self._endings].copy()
            mask[self._endings] = False
            if not mask.any():
                mask[self._endings] = ended
        return mask

    def _forced(self, thinking: ThinkingTracker | None) -> int | None:
        if thinking is None:
            return None
        if self._grammar is not None and not thinking.inside and thinking.matched:
            # The first token of the opening marker was chosen instead of the grammar's text: the others follow.
            return thinking.start[thinking.matched]
        return thinking.forced()

    def _can_open(self, thinking: ThinkingTracker) -> bool:
        return self._may_think and not thinking.opened and thinking.matched == 0 and self._consumed == 0

    def _advance(self, thinking: ThinkingTracker | None, token: int) -> bool:
        """Take in one token; False when the grammar does not allow it."""
        grammar = self._grammar
        if thinking is not None and (
            grammar is None or thinking.inside or thinking.matched or self._can_open(thinking)
        ):
            was_inside = thinking.inside
            if thinking.feed(token) or was_inside or thinking.matched:
                return True
        if grammar is None:
            return True
        if not grammar.take(token):
            return False
        self._consumed += 1
        return True

    @staticmethod
    def _inside(thinking: ThinkingTracker | None) -> bool:
        return thinking is not None and thinking.inside
