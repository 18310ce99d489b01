"""A round: draft, choose a depth, verify, accept, commit. Plain decoding is the same round at depth 0."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np

from macspec.engine.sampling import Chooser, keyed_gumbel
from macspec.engine.session import Session
from macspec.engine.verify import accepted_prefix
from macspec.kernels.library import KernelLibrary
from macspec.scheduler.interface import Decision, DepthPolicy, RoundOutcome, RoundState, SlotConfidence
from macspec_models.drafters.interface import DraftBlock


@dataclass(frozen=True, slots=True)
class Committed:
    """What one round added to the answer."""

    tokens: list[int]
    decision: Decision
    outcome: RoundOutcome
    #: Target logits of the committed rows ``[len(tokens), vocab]``, for log-probabilities.
    logits: mx.array


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A draft read back from the device."""

    tokens: list[int]
    confidence: tuple[SlotConfidence, ...] = ()
    features: tuple[float, ...] = ()
    source: str = ""


class Rounds:
    """The rounds of one answer, one at a time.

    A round costs two host syncs: the draft with its confidences, and the target's choices; one when nothing is drafted.
    """

    def __init__(
        self,
        session: Session,
        chooser: Chooser,
        policy: DepthPolicy,
        *,
        temperature: float,
        budget: int,
        ends_answer: Callable[[Sequence[int]], int | None],
        noise_seed: int | None = None,
        library: KernelLibrary | None = None,
    ) -> None:
        """Prepare to generate at most ``budget`` tokens.

        Args:
            ends_answer: given the tokens a round would commit, how many of them belong to the answer when it ends
                inside them, else None. Called once per round, in order.
            noise_seed: draft with the target's own keyed noise of this seed; None drafts the arg max.
            library: kernels that may take part in a pass; None where MLX's own do everything.
        """
        self.library = library
        self.session, self.chooser, self.policy = session, chooser, policy
        self.temperature, self.budget, self.ends_answer = temperature, budget, ends_answer
        self.noise_seed = noise_seed if temperature > 0 else None
        self.finished = budget <= 0
        self._block: DraftBlock | None = None
        self._asked = False
        self._draft_seconds = 0.0

    def step(self) -> Committed:
        """Run one round. Afterwards `launch` may start the next draft while the caller deals with this round's text."""
        begin = time.perf_counter()
        session, state = self.session, self._state()

        # Draft.
        if not self._asked:
            self._start_draft(state)
        self._asked = False
        drafted = self._read_draft()
        draft_seconds, self._draft_seconds = self._draft_seconds, 0.0

        # Depth.
        state = dataclasses.replace(
            state,
            max_depth=min(state.max_depth, len(drafted.tokens)),
            confidence=drafted.confidence,
            features=drafted.features,
            source=drafted.source,
        )
        decision = self.policy.choose(state)
        draft = drafted.tokens[: decision.depth]

        # Verify.
        mark = time.perf_counter()
        logits, choices = self._verify(draft)
        verify_seconds = time.perf_counter() - mark

        # Accept.
        accepted = accepted_prefix(draft, choices)
        committed = choices[: accepted + 1]
        end = self.ends_answer(committed)
        if end is not None:
            committed = committed[:end]

        # Commit.
        session.commit(committed)
        self.chooser.commit(committed)
        self.budget -= len(committed)
        self.finished = end is not None or self.budget <= 0 or self.chooser.must_stop()
        elapsed = time.perf_counter() - begin
        outcome = RoundOutcome(
            depth=len(draft),
            accepted=accepted,
            committed=len(committed),
            drafted=len(drafted.tokens),
            context=session.cache.length,
            draft_ms=1e3 * draft_seconds,
            verify_ms=1e3 * verify_seconds,
            other_ms=max(0.0, 1e3 * (elapsed - draft_seconds - verify_seconds)),
            temperature=self.temperature,
            confidence=drafted.confidence,
            source=drafted.source,
        )
        self.policy.observe(outcome)
        return Committed(committed, decision, outcome, logits[: len(committed)])

    def launch(self) -> None:
        """Start the next round's draft on the device without waiting for it."""
        if not self.finished:
            self._start_draft(self._state())

    def _verify(self, draft: list[int]) -> tuple[mx.array, list[int]]:
        """One target pass over the anchor and ``draft``: its logits, and what the target chooses at every row.

        A kernel of ours that fails at run time is given up for good and the pass is made again without it.
        """
        session = self.session

        def attempt() -> tuple[mx.array, list[int]]:
            logits = session.forward(mx.array([[session.anchor, *draft]]))
            choices = self.chooser.choose(logits, len(session.tokens), draft)
            return logits, cast(list[int], choices.tolist())

        return attempt() if self.library is None else self.library.guard(attempt, session.cache.rollback)

    def _state(self) -> RoundState:
        """What is known before a draft. The budget's last token needs none: it is the bonus of a plain step."""
        session = self.session
        room = session.target.max_context - len(session.tokens) - 1
        depth = 0 if session.drafter is None else min(session.drafter.max_depth, self.budget - 1, max(0, room))
        return RoundState(max_depth=depth, context=session.cache.length, temperature=self.temperature)

    def _start_draft(self, state: RoundState) -> None:
        self._asked = True
        session = self.session
        if session.drafter is None or session.context is None or state.max_depth == 0:
            return
        limit = self.policy.draft_limit(state)
        if limit == 0:
            return
        mark = time.perf_counter()
        session.flush()
        self._block = session.drafter.draft(
            session.context,
            session.anchor,
            session.tokens,
            limit=limit,
            noise=None if self.noise_seed is None else self._noise,
        )
        wanted = [self._block.confidence] if self.policy.needs_confidence else []
        mx.async_eval(self._block.tokens, wanted)  # type: ignore[no-untyped-call]  # MLX is untyped
        self._draft_seconds += time.perf_counter() - mark

    def _noise(self, position: int, rows: int) -> mx.array:
        assert self.noise_seed is not None
        vocab = self.session.target.vocab_size
        return self.temperature * keyed_gumbel(self.noise_seed, position, rows, vocab)

    def _read_draft(self) -> _Drafted:
        """Wait for the draft: its tokens and, when the policy wants them, their confidences. One host sync."""
        block, self._block = self._block, None
        if block is None:
            return _Drafted([])
        mark = time.perf_counter()
        if not self.policy.needs_confidence:
            tokens = cast(list[int], block.tokens.tolist())
            self._draft_seconds += time.perf_counter() - mark
            return _Drafted(tokens, source=block.source)
        # One small array carries both: token ids are exact in float32 up to 2^24.
        both = np.array(mx.concatenate([block.tokens.astype(mx.float32)[:, None], block.confidence], axis=1))
        features = () if block.features is None else tuple(np.array(block.features).tolist())
        self._draft_seconds += time.perf_counter() - mark
        confidence = tuple(SlotConfidence(*map(float, row)) for row in both[:, 1:])
        return _Drafted(both[:, 0].astype(int).tolist(), confidence, features, block.source)


def run(rounds: Rounds, cancelled: Callable[[], bool]) -> Iterator[Committed]:
    """Rounds until the answer ends or is cancelled; the next draft is launched before a round is handed out."""
    while not rounds.finished and not cancelled():
        committed = rounds.step()
        rounds.launch()
        yield committed
