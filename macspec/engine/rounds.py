"""A round: draft, choose a depth, verify, accept, commit. Plain decoding is the same round at depth 0."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import mlx.core as mx
import numpy as np

from macspec.engine.device_round import DeviceTurn, run_round
from macspec.engine.exact import Exact, Settled, Watch
from macspec.engine.sampling import Chooser, keyed_gumbel
from macspec.engine.session import Session
from macspec.engine.verify import accepted_prefix
from macspec.kernels.ops import RoundOps
from macspec.scheduler.interface import Decision, DepthPolicy, RoundOutcome, RoundState, SlotConfidence
from macspec_models.drafters.interface import DraftBlock, DraftContext, Drafter, FreeDrafter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Committed:
    """What one round added to the answer."""

    tokens: list[int]
    decision: Decision
    outcome: RoundOutcome
    #: Target logits of the committed rows ``[len(tokens), vocab]``, for log-probabilities.
    logits: mx.array
    #: Near-ties decided again in exact mode, and the time that took; not part of the outcome's times.
    redecided: int = 0
    redecide_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class _Drafted:
    """A draft read back from the device."""

    tokens: list[int]
    confidence: tuple[SlotConfidence, ...] = ()
    features: tuple[float, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A round up to the target's choices. Times are in seconds."""

    drafted: _Drafted
    decision: Decision
    settled: Settled
    draft_seconds: float
    verify_seconds: float


class Rounds:
    """The rounds of one answer, one at a time.

    A round costs two host syncs: the draft with its confidences, and the target's choices; one when nothing is drafted
    or the depth is decided on the device.
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
        ops: RoundOps | None = None,
        device_case: str = "",
        exact: Exact | None = None,
    ) -> None:
        """Prepare to generate at most ``budget`` tokens.

        Args:
            ends_answer: given the tokens a round would commit, how many of them belong to the answer when it ends
                inside them, else None. Called once per round, in order.
            noise_seed: draft with the target's own keyed noise of this seed; None drafts the arg max.
            ops: with the kernels that may take part; None where MLX's own ops do everything.
            device_case: the case that decides whether depths are decided on the device; "" for never.
            exact: decides near-ties again; None leaves them as the pass decided them.
        """
        self.ops, self.exact = ops or RoundOps(), exact
        self.library, self.device_case = self.ops.library, device_case
        self.session, self.chooser, self.policy = session, chooser, policy
        self.temperature, self.budget, self.ends_answer = temperature, budget, ends_answer
        self.noise_seed = noise_seed if temperature > 0 else None
        self.finished = budget <= 0
        self._block: DraftBlock | None = None
        self._limit = 0
        self._asked = False
        self._draft_seconds = 0.0
        #: Kernels in work that was started and not waited for: they are to blame too when the next wait fails.
        self._suspects: tuple[str, ...] = ()

    def step(self) -> Committed:
        """Run one round. Afterwards `launch` may start the next draft while the caller deals with this round's text."""
        begin = time.perf_counter()
        session, state = self.session, self._state()

        # Draft, depth, verify.
        if not self._asked:
            self._start_draft(state)
        self._asked = False
        turn = self._on_device(state) or self._on_host(state)
        drafted, decision, settled = turn.drafted, turn.decision, turn.settled
        draft, choices = drafted.tokens[: decision.depth], settled.choices

        # Accept.
        accepted = accepted_prefix(draft, choices)
        committed = choices[: accepted + 1]
        end = self.ends_answer(committed)
        if end is not None:
            committed = committed[:end]

        # Commit.
        self._guarded(lambda: session.commit(committed), session.again, waits=False)
        self.chooser.commit(committed)
        self.budget -= len(committed)
        self.finished = end is not None or self.budget <= 0 or self.chooser.must_stop()
        elapsed = time.perf_counter() - begin - settled.seconds
        outcome = RoundOutcome(
            depth=len(draft),
            accepted=accepted,
            committed=len(committed),
            drafted=len(drafted.tokens),
            context=session.cache.length,
            draft_ms=1e3 * turn.draft_seconds,
            verify_ms=1e3 * turn.verify_seconds,
            other_ms=max(0.0, 1e3 * (elapsed - turn.draft_seconds - turn.verify_seconds)),
            temperature=self.temperature,
            confidence=drafted.confidence,
            source=drafted.source,
        )
        self.policy.observe(outcome)
        logits = settled.logits[: len(committed)]
        return Committed(committed, decision, outcome, logits, settled.redecided, 1e3 * settled.seconds)

    def launch(self) -> None:
        """Start the next round's draft on the device without waiting for it."""
        if not self.finished:
            self._start_draft(self._state())

    def _on_host(self, state: RoundState) -> _Turn:
        """Read the draft, choose a depth, verify."""
        drafted = self._read_draft()
        draft_seconds, self._draft_seconds = self._draft_seconds, 0.0
        decision = self.policy.choose(_known(state, drafted))
        mark = time.perf_counter()
        settled = self._verify(drafted.tokens[: decision.depth])
        return _Turn(drafted, decision, settled, draft_seconds, time.perf_counter() - mark - settled.seconds)

    def _on_device(self, state: RoundState) -> _Turn | None:
        """The same with one wait, where that won its race and the policy can say in numbers what it will choose."""
        block, library = self._block, self.library
        make_plan = getattr(self.policy, "plan", None)
        if block is None or library is None or make_plan is None or self.exact is not None or not self.chooser.fast:
            return None
        if not self.device_case or not library.uses(self.device_case):
            return None
        plan = make_plan(dataclasses.replace(state, max_depth=block.tokens.shape[0], source=block.source))
        if plan is None:
            return None

        def attempt() -> DeviceTurn:
            library.uses(self.device_case)  # to be blamed
            assert self._block is not None
            return run_round(self.session, self.chooser, self.ops, plan, self._block)

        mark = time.perf_counter()
        turn = self._guarded(attempt, self._draft_again)
        seconds = time.perf_counter() - mark + self._draft_seconds
        draft_seconds = max(self._draft_seconds, min(seconds, plan.draft_ms / 1e3))
        self._block, self._draft_seconds = None, 0.0
        drafted = _Drafted(turn.draft, turn.confidence, source=block.source)
        decision = dataclasses.replace(self.policy.choose(_known(state, drafted)), depth=turn.depth)
        settled = Settled(turn.logits, turn.choices)
        return _Turn(drafted, decision, settled, draft_seconds, seconds - draft_seconds)

    def _verify(self, draft: list[int]) -> Settled:
        """What the target chooses after the anchor and after every token of ``draft``."""
        if self.exact is None:
            return Settled(*self._pass(draft))
        return self.exact.verify(draft, self._pass, lambda run: self._guarded(run, self.session.recover))

    def _pass(self, draft: list[int], watch: Watch | None = None) -> tuple[mx.array, list[int]]:
        """One target pass over the anchor and ``draft``: its logits, and the target's choice at every row."""
        session = self.session

        def attempt() -> tuple[mx.array, list[int]]:
            logits = session.forward(mx.array([[session.anchor, *draft]]))
            scores = self.chooser.scores(logits, len(session.tokens), draft)
            choices = self.chooser.pick(scores, len(session.tokens))
            if watch is not None:
                watch(scores, choices)
            return logits, cast(list[int], choices.tolist())

        return self._guarded(attempt, session.recover)

    def _state(self) -> RoundState:
        """What is known before a draft. The budget's last token needs none: it is the bonus of a plain step."""
        session = self.session
        room = session.target.max_context - len(session.tokens) - 1
        depth = 0 if session.drafter is None else min(session.drafter.max_depth, self.budget - 1, max(0, room))
        if self.exact is not None and not self.exact.speculates(self.budget):
            depth = 0
        return RoundState(max_depth=depth, context=session.cache.length, temperature=self.temperature)

    def _start_draft(self, state: RoundState) -> None:
        self._asked = True
        session = self.session
        if session.drafter is None or session.context is None or state.max_depth == 0:
            return
        limit = self.policy.draft_limit(state)
        mark = time.perf_counter()
        if limit == 0:
            self._block = self._free_draft(session.drafter, session.context, state)
        else:
            self._limit = limit
            self._block = self._guarded(self._draft, session.recover, waits=False)
        self._draft_seconds += time.perf_counter() - mark

    def _free_draft(self, drafter: Drafter, context: DraftContext, state: RoundState) -> DraftBlock | None:
        """What the drafter has without running its model, in a round in which the policy pays for no draft."""
        if not isinstance(drafter, FreeDrafter):
            return None
        limit = self.policy.draft_limit(dataclasses.replace(state, free=True))
        block = drafter.draft_free(context, self.session.tokens, limit=limit)
        return block if block.tokens.shape[0] else None

    def _draft(self) -> DraftBlock:
        """Build a draft and hand it to the device."""
        session = self.session
        assert session.drafter is not None and session.context is not None
        session.flush()
        block = session.drafter.draft(
            session.context,
            session.anchor,
            session.tokens,
            limit=self._limit,
            noise=None if self.noise_seed is None else self._noise,
        )
        wanted = [block.confidence] if self.policy.needs_confidence else []
        mx.async_eval(block.tokens, wanted)  # type: ignore[no-untyped-call]  # MLX is untyped
        return block

    def _guarded(self, run: Callable[[], T], undo: Callable[[], None], *, waits: bool = True) -> T:
        """``run``, which builds work for the device and, if it ``waits``, waits for it.

        A kernel of ours that fails in it is given up for good; then ``undo``, and ``run`` again without the kernel.
        """
        library = self.library
        if library is None:
            return run()
        result = library.guard(run, undo, self._suspects)
        if waits:
            library.settle()
        self._suspects = library.active
        return result

    def _noise(self, position: int, rows: int) -> mx.array:
        assert self.noise_seed is not None
        vocab = self.session.target.vocab_size
        return self.temperature * keyed_gumbel(self.noise_seed, position, rows, vocab)

    def _read_draft(self) -> _Drafted:
        """Wait for the draft: its tokens and, when the policy wants them, their confidences. One host sync."""
        if self._block is None:
            return _Drafted([])
        mark = time.perf_counter()
        drafted = self._guarded(self._fetch, self._draft_again)
        self._block = None
        self._draft_seconds += time.perf_counter() - mark
        return drafted

    def _draft_again(self) -> None:
        self.session.recover()
        self._block = self._draft()

    def _fetch(self) -> _Drafted:
        block = self._block
        assert block is not None
        if not self.policy.needs_confidence:
            return _Drafted(cast(list[int], block.tokens.tolist()), source=block.source)
        # One small array carries both: token ids are exact in float32 up to 2^24.
        both = np.array(mx.concatenate([block.tokens.astype(mx.float32)[:, None], block.confidence], axis=1))
        features = () if block.features is None else tuple(np.array(block.features).tolist())
        confidence = tuple(SlotConfidence(*map(float, row)) for row in both[:, 1:])
        return _Drafted(both[:, 0].astype(int).tolist(), confidence, features, block.source)


def _known(state: RoundState, drafted: _Drafted) -> RoundState:
    """The state with what the draft says."""
    return dataclasses.replace(
        state,
        max_depth=min(state.max_depth, len(drafted.tokens)),
        confidence=drafted.confidence,
        features=drafted.features,
        source=drafted.source,
    )


def run(rounds: Rounds, cancelled: Callable[[], bool]) -> Iterator[Committed]:
    """Rounds until the answer ends or is cancelled; the next draft is launched before a round is handed out."""
    while not rounds.finished and not cancelled():
        committed = rounds.step()
        rounds.launch()
        yield committed
