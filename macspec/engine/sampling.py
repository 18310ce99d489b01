"""The target's choice: a pure function of its logits, the tokens before, and noise keyed by ``(seed, position)``.

Order of application: grammar, allowed and banned tokens, bias, penalties, temperature, top-k, top-p, min-p, choice.
Because nothing else enters, neither the drafter nor the depth of a round can change the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from macspec.engine.constraints import Constraints
from macspec.engine.contest import contested, contested_draw
from macspec.engine.grammar import GrammarState, Mask
from macspec.engine.noise import derived_seed, gumbel_at, keyed_gumbel
from macspec.engine.penalties import Penalties
from macspec.engine.processors import best_tokens, truncated
from macspec.engine.thinking import ThinkingTracker
from macspec.errors import RequestError
from macspec.kernels.ops import RoundOps
from macspec.request import SamplingParams

__all__ = ["Chooser", "derived_seed", "keyed_gumbel"]


class Chooser:
    """Turns rows of logits into the target's choices for one answer."""

    def __init__(
        self,
        params: SamplingParams,
        vocab: int,
        tokenizer: Any,
        prompt: Sequence[int],
        seed: int,
        eos: frozenset[int],
        *,
        thinking: bool | None = None,
        thinking_budget: int | None = None,
        ops: RoundOps | None = None,
    ) -> None:
        """Prepare the choices of one answer.

        Args:
            tokenizer: the target's mlx-lm ``TokenizerWrapper``; used by grammars and for thinking only.
            prompt: the prompt's token ids; the first choice is at position ``len(prompt)``.
            seed: key of the noise; distinct answers of one request need distinct seeds.
            eos: end-of-sequence tokens; with the stop tokens they are held back until ``min_tokens``.
            thinking: False ends every thinking section at once; a grammar applies after thinking.
            thinking_budget: tokens after which a thinking section is made to end.
            ops: computes the choice; MLX's own ops by default.

        Raises:
            RequestError: the grammar is invalid, or the parameters leave no token to choose from.
        """
        self.params, self.vocab, self.seed = params, vocab, seed
        self._ops = ops or RoundOps()
        self._first = len(prompt)
        self._endings = sorted((eos | frozenset(params.stop_token_ids)) & frozenset(range(vocab)))
        allowed = self._allowed(params, vocab)
        self._offset = self._make_offset(params, allowed, vocab)
        self._no_ending = _forbid(self._endings, vocab) if params.min_tokens > 0 else None
        self._penalties = Penalties(params, prompt) if Penalties.wanted(params) else None
        self._constraints = self._make_constraints(tokenizer, prompt, eos, allowed, thinking, thinking_budget)

    @property
    def _changes(self) -> bool:
        """Whether the model's own logits are not what is chosen from."""
        return not self.fast or self._offset is not None or self._no_ending is not None

    @property
    def fast(self) -> bool:
        """True while `choose` needs no draft token ids, so ``draft`` may be empty."""
        return self._penalties is None and self._constraints is None

    def choose(self, logits: mx.array, position: int, draft: Sequence[int]) -> mx.array:
        """The target's choice in every row: `pick` from its `scores`."""
        return self.pick(self.scores(logits, position, draft), position)

    def scores(self, logits: mx.array, position: int, draft: Sequence[int]) -> mx.array:
        """What the choice is made from: logits with everything applied that comes before the temperature.

        Args:
            logits: ``[rows, vocab]``; row k follows the committed tokens and ``draft[:k]``.
            position: absolute position of the token row 0 chooses.
            draft: the draft tokens fed in this pass, ``rows - 1`` of them.

        Returns:
            Lazy ``[n, vocab]``, the logits themselves where nothing applies. ``n`` is below ``rows`` where the draft
            cannot be accepted any further: it breaks the grammar or goes on after its end.

        Raises:
            RequestError: the constraints leave nothing to follow the committed tokens.
        """
        return self._processed(logits.astype(mx.float32), position, draft) if self._changes else logits

    def pick(self, scores: mx.array, position: int) -> mx.array:
        """The choice in every row of `scores`: lazy int32 ``[n]``.

        At temperature 0 the best token, the lowest id among equals.
        """
        params = self.params
        if params.temperature == 0.0 or (not params.top_k and params.top_p == 1.0 and params.min_p == 0.0):
            return self._ops.keyed_choice(scores, params.temperature, self.seed, position)
        return self._draw(scores.astype(mx.float32) / params.temperature, position)

    def near_ties(self, scores: mx.array, choices: mx.array, position: int, bound: float) -> mx.array:
        """Whether logits that are off by up to ``bound`` could change a choice.

        Args:
            scores, position: as given to `pick`. choices: what it returned.

        Returns:
            Lazy bool ``[n]``.
        """
        params = self.params
        scores = scores.astype(mx.float32)
        # Two scores move by the bound each; a repetition penalty stretches a score.
        slack = 2.0 * bound * max(params.repetition_penalty, 1.0 / params.repetition_penalty)
        if params.temperature == 0.0:
            return contested(scores, choices, slack)
        slack /= params.temperature
        noise = keyed_gumbel(self.seed, position, scores.shape[0], self.vocab)
        return contested_draw(
            scores / params.temperature,
            noise,
            choices,
            slack,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Take tokens into the answer: later rows follow them."""
        if self._penalties is not None:
            self._penalties.commit(tokens)
        if self._constraints is not None:
            self._constraints.commit(tokens)

    def must_stop(self) -> bool:
        """True once nothing may follow the committed tokens: the grammar is complete."""
        return self._constraints is not None and self._constraints.finished

    def logprobs(self, logits: mx.array, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        """Log-probabilities of the model itself, before bias, penalties, temperature and truncation.

        Args:
            logits: ``[vocab]``, the row that chose ``token``.
            top: how many of the likeliest tokens to give beside it.

        Returns:
            The token's natural log-probability, and ``(id, log-probability)`` of the likeliest, best first.
        """
        return self.logprob_rows(logits[None], [token], top)[0]

    def logprob_rows(
        self, logits: mx.array, tokens: Sequence[int], top: int
    ) -> list[tuple[float, list[tuple[int, float]]]]:
        """`logprobs` of several rows ``[rows, vocab]`` with one wait for the device."""
        scores = logits.astype(mx.float32)
        scores = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(scores, mx.array(list(tokens), dtype=mx.uint32)[:, None], axis=-1)[:, 0]
        if top == 0:
            return [(own, []) for own in np.array(chosen).tolist()]
        best = best_tokens(scores, min(top, self.vocab))
        values = mx.take_along_axis(scores, best, axis=-1)
        mx.eval(chosen, best, values)
        rows = zip(np.array(chosen).tolist(), np.array(best).tolist(), np.array(values).tolist(), strict=True)
        return [
            (own, sorted(zip(ids, row, strict=True), key=lambda pair: (-pair[1], pair[0]))) for own, ids, row in rows
        ]

    def _processed(self, scores: mx.array, position: int, draft: Sequence[int]) -> mx.array:
        """Scores after masks, bias and penalties, of the rows that can be reached."""
        early = max(0, self._first + self.params.min_tokens - position)
        masks: list[Mask | None] = []
        if self._constraints is not None:
            masks = self._constraints.along(draft, scores.shape[0], early)
            scores = scores[: len(masks)]
        if self._offset is not None:
            scores = scores + self._offset
        # Rows with a mask have their endings settled in it: a complete grammar goes before min_tokens.
        held_back = [row < early and (not masks or masks[row] is None) for row in range(scores.shape[0])]
        if self._no_ending is not None and any(held_back):
            scores = mx.where(mx.array(held_back)[:, None], scores + self._no_ending, scores)
        if any(mask is not None for mask in masks):
            everything = np.ones(self.vocab, dtype=np.bool_)
            allowed = mx.array(np.stack([everything if mask is None else mask for mask in masks]))
            scores = mx.where(allowed, scores, -mx.inf)
        if self._penalties is not None:
            scores = self._penalties.apply(scores, draft)
        return scores

    def _draw(self, scores: mx.array, position: int) -> mx.array:
        """Gumbel-max over what the truncations leave; only the candidates get noise where they are few."""
        params, rows = self.params, scores.shape[0]
        scores, tokens = truncated(scores, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
        if tokens is None:
            return mx.argmax(scores + keyed_gumbel(self.seed, position, rows, self.vocab), axis=-1).astype(mx.int32)
        best = mx.argmax(scores + gumbel_at(self.seed, position, rows, tokens), axis=-1, keepdims=True)
        return mx.take_along_axis(tokens, best, axis=-1)[:, 0].astype(mx.int32)

    def _allowed(self, params: SamplingParams, vocab: int) -> Mask | None:
        """Tokens that may be chosen at all, None for all of them."""
        if params.allowed_tokens is None and not params.banned_tokens:
            return None
        allowed = np.full(vocab, params.allowed_tokens is None)
        allowed[list(params.allowed_tokens or ())] = True
        allowed[list(params.banned_tokens)] = False
        lasting = allowed.copy()
        if params.min_tokens > 0:
            lasting[self._endings] = False
        if not lasting.any():
            raise RequestError(
                "allowed_tokens, banned_tokens and min_tokens together leave no token to choose; allow at least one.",
                param="banned_tokens" if params.allowed_tokens is None else "allowed_tokens",
            )
        return allowed

    def _make_offset(self, params: SamplingParams, allowed: Mask | None, vocab: int) -> mx.array | None:
        """What is added to every row: the bias, and minus infinity for tokens that are not allowed: ``[1, vocab]``."""
        if allowed is None and not params.logit_bias:
            return None
        row = np.zeros(vocab, dtype=np.float32)
        for token, bias in params.logit_bias.items():
            row[token] = bias
        if allowed is not None:
            row[~allowed] = -np.inf
        return mx.array(row)[None]

    def _make_constraints(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        eos: frozenset[int],
        allowed: Mask | None,
        thinking: bool | None,
        budget: int | None,
    ) -> Constraints | None:
        params = self.params
        tracker = ThinkingTracker.of(tokenizer, prompt, thinking=thinking, budget=budget)
        if params.grammar is None and (tracker is None or tracker.budget is None):
            return None
        grammar = None
        if params.grammar is not None:
            grammar = GrammarState(params.grammar, tokenizer, self.vocab, eos)
        constraints = Constraints(
            self.vocab,
            grammar,
            tracker,
            allowed=allowed,
            endings=self._endings,
            may_think=thinking is not False,
        )
        # What cannot even begin is refused now and not after the prompt was read.
        constraints.along((), 1, 0)
        return constraints


def _forbid(tokens: Sequence[int], vocab: int) -> mx.array:
    row = np.zeros(vocab, dtype=np.float32)
    row[list(tokens)] = -np.inf
    return mx.array(row)[None]
