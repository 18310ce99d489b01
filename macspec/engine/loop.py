"""The engine: answers requests, one round at a time, as a stream of events."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
import platformdirs

from macspec.engine.answer import Answer
from macspec.engine.caches import TargetCache, quantize_layers
from macspec.engine.device_round import race_case
from macspec.engine.exact import Exact
from macspec.engine.forecast import CacheCost
from macspec.engine.load import load_pair
from macspec.engine.memory import MemoryGuard, memory_limit
from macspec.engine.prefix_cache import PrefixCache, Reuse
from macspec.engine.prefix_disk import DiskTier
from macspec.engine.prompt import prompt_tokens, repeated_prefix, takes_effort
from macspec.engine.rounds import Committed, Rounds, run
from macspec.engine.row_noise import RowNoise, measure
from macspec.engine.sampling import Chooser, derived_seed
from macspec.engine.session import Session
from macspec.engine.tally import Tally
from macspec.engine.thinking import Markers
from macspec.engine.validation import check_abilities, check_depth, check_sampling
from macspec.errors import ContextLengthError, RequestError
from macspec.kernels.library import KernelLibrary
from macspec.kernels.ops import RoundOps
from macspec.kernels.replay import record_passes
from macspec.request import Event, Finished, FinishReason, GenerationRequest, PrefillProgress, Round, Started
from macspec.scheduler.interface import DepthPolicy
from macspec.scheduler.policies import make_policy
from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.combined import without_lookup
from macspec_models.drafters.context import CHUNK
from macspec_models.drafters.interface import Drafter
from macspec_models.target import Target

#: Tokens in the caches while rounds race.
RACE_PROMPT = 65
#: Temperature from which drafts share the target's noise unless a request says otherwise. Coupled / argmax acceptance
#: at 0.3, 0.7 and 1.0: 0.99, 1.02, 1.07; speed 0.95, 0.97, 1.02, on a CPU, where noise is dear: benchmarks/coupled.py.
COUPLED_FROM = 0.9
#: Bits of a seed drawn here: every client's number type holds them exactly, JavaScript's included.
SEED_BITS = 53

Cancelled = Callable[[], bool]
PolicyFactory = Callable[[str], DepthPolicy]


class Engine:
    """A loaded pair. Lives on one thread; several requests may be in progress, each as a generator of its own."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        *,
        drafter_reason: str = "",
        context: int | None = None,
        prefill_chunk: int = 512,
        prefix_cache_bytes: int = 1 << 30,
        disk_cache_bytes: int = 0,
        kv_bits: int | None = None,
        drafter_context: int | None = None,
        policy_factory: PolicyFactory | None = None,
        exact: bool = False,
    ) -> None:
        self.target, self.drafter, self.drafter_reason = target, drafter, drafter_reason
        if context is not None and not 0 < context <= target.max_context:
            raise RequestError(
                f"The context is {context}, but {target.name} takes from 1 to {target.max_context} tokens.",
                param="context",
            )
        self.max_context = context or target.max_context
        self.prefill_chunk = prefill_chunk
        self.make_policy: PolicyFactory = policy_factory or make_policy
        self._policies: dict[str, DepthPolicy] = {}
        target.set_taps(drafter.taps if drafter is not None else ())
        self.kv_bits = kv_bits
        if drafter_context is not None:
            self._bound_drafter(drafter_context)
        #: Whether answers are plain decoding's also where near-ties could turn; a request may say otherwise.
        self.exact = exact
        self._noise: RowNoise | None = None
        self.library: KernelLibrary | None = None
        self.ops, self.device_case = RoundOps(), ""
        record_passes(target.model, self.ops)
        self.prefixes = PrefixCache(
            prefix_cache_bytes,
            self._new_cache,
            None if drafter is None else drafter.new_context,
            self._disk_tier(disk_cache_bytes) if disk_cache_bytes else None,
        )
        self.guard = self._memory_guard()

    @classmethod
    def load(cls, model: str | None = None, drafter: str | None = None, **options: Any) -> Self:
        """Load a pair by registry name, folder or hub id; see `macspec.engine.load.load_pair` for the options."""
        own_names = (
            *("context", "prefill_chunk", "prefix_cache_bytes", "disk_cache_bytes"),
            *("kv_bits", "drafter_context", "policy_factory", "exact"),
        )
        own = {name: options.pop(name) for name in own_names if name in options}
        pair = load_pair(model, drafter, **options)
        return cls(pair.target, pair.drafter, drafter_reason=pair.drafter_reason, **own)

    def use(self, library: KernelLibrary) -> None:
        """Let kernels take part in rounds from now on, where ``library`` says so."""
        self.library = self.ops.library = library
        if (drafter := self._block_drafter()) is not None:
            drafter.reading = self.ops.draft_confidence

    def race_device_rounds(self) -> None:
        """Decide whether depths are decided on the device; the other kernels must be decided already."""
        library, drafter = self.library, self.drafter
        if library is None or drafter is None or not drafter.taps:
            return
        prompt = [token % self.target.vocab_size for token in range(RACE_PROMPT)]
        session = Session(self.target, drafter, prompt, Reuse(self._new_cache(), drafter.new_context(), 0), library)
        for _ in session.prefill(self.prefill_chunk, lambda: False):
            pass
        case = race_case(session, self.ops, f"{self.target.name}+{drafter.kind}", library.summary)
        library.prepare([case])
        self.device_case = case.name

    def info(self) -> dict[str, Any]:
        """What is loaded, as plain values."""
        tokenizer, drafter = self.target.tokenizer, self.drafter
        return {
            "model": self.target.name,
            "revision": self.target.revision,
            "drafter": None if drafter is None else getattr(drafter, "name", drafter.kind),
            "drafter_reason": self.drafter_reason,
            "kind": "plain" if drafter is None else drafter.kind,
            "vocab": self.target.vocab_size,
            "max_context": self.max_context,
            "max_depth": 0 if drafter is None else drafter.max_depth,
            "thinking": Markers.of(tokenizer) is not None,
            "efforts": takes_effort(tokenizer),
            "tools": bool(getattr(tokenizer, "has_tool_calling", False)),
            "parameters_bytes": self.target.nbytes,
            "dtype": str(self.target.dtype).removeprefix("mlx.core."),
            "device": str(mx.device_info().get("device_name", mx.default_device())),
        }

    def policy(self, request: GenerationRequest) -> DepthPolicy:
        """The rule that chooses this request's depths. Rules that learn are shared by all requests."""
        if self.drafter is None and request.depth not in ("auto", "0"):
            reason = self.drafter_reason.rstrip(".") or "none was loaded"
            raise RequestError(
                f"depth is {request.depth}, but there is no drafter: {reason}. Use auto or 0.", param="depth"
            )
        if self.drafter is None or request.depth == "0":
            name = "plain"
        elif request.depth == "auto":
            name = request.policy
        else:
            name = "full" if request.depth == "full" else f"fixed:{int(request.depth)}"
        if self.drafter is not None and name.startswith("fixed:"):
            check_depth(int(name.removeprefix("fixed:")), self.drafter.max_depth)
        if name not in self._policies:
            self._policies[name] = self.make_policy(name)
        return self._policies[name]

    def row_noise(self) -> RowNoise:
        """How much a row depends on the row count of its pass, over the drafter's row counts; measured once."""
        if self._noise is None:
            rows = 1 + (0 if self.drafter is None else self.drafter.max_depth)
            self._noise = measure(self.target, self._new_cache, rows, self.prefill_chunk)
        return self._noise

    def _unequal_rows(self) -> RowNoise | None:
        """The row noise where there is any and several rows are ever verified at a time."""
        noise = None if self.drafter is None else self.row_noise()
        return None if noise is None or noise.same_bits else noise

    def count_tokens(self, request: GenerationRequest) -> int:
        """Prompt tokens of a request, chat template included."""
        return len(self.tokenize(request))

    def tokenize(self, request: GenerationRequest) -> list[int]:
        """Prompt token ids of a request; refuses one whose prompt this model could not honour."""
        request.check()
        check_abilities(request, self.target.tokenizer)
        return prompt_tokens(request, self.target.tokenizer, self.target.vocab_size)

    def generate(self, request: GenerationRequest, cancelled: Cancelled = lambda: False) -> Iterator[Event]:
        """Answer a request.

        Yields `Started`, `PrefillProgress`, then `Round` and `Text` (`ToolCall`) events, and one `Finished` per answer.
        Everything that can be refused is refused before the first event.

        Args:
            cancelled: asked before every round and every prefill chunk.

        Raises:
            MacspecError: with a sentence and, for a wrong value, the field's name.
        """
        prompt = self.tokenize(request)
        sampling = request.sampling
        check_sampling(sampling, self.target.vocab_size, self.max_context)
        room = self.max_context - len(prompt)
        if room < 1:
            raise ContextLengthError(
                f"The prompt has {len(prompt)} tokens and the context holds {self.max_context}; shorten it by "
                f"{1 - room} or more.",
                param="messages" if request.messages is not None else "prompt",
            )
        policy = self.policy(request)
        seed = secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed
        budget = self._admit(len(prompt), room, sampling.max_tokens)
        for index in range(sampling.n):
            own_seed = derived_seed(seed, index)
            chooser = Chooser(
                sampling,
                self.target.vocab_size,
                self.target.tokenizer,
                prompt,
                own_seed,
                self.target.eos,
                thinking=request.thinking,
                thinking_budget=request.thinking_budget,
                ops=self.ops,
            )
            yield from self._answer(request, index, prompt, chooser, own_seed, policy, budget, cancelled)

    def _admit(self, prompt: int, room: int, wanted: int | None) -> int:
        """Tokens the answer may have. A number that was asked for must fit in memory; else it is what fits."""
        if wanted is not None:
            budget = min(room, wanted)
            self.guard.admit(prompt + budget)
            return budget
        fitting = self.guard.longest_context(self.max_context) - prompt
        self.guard.admit(prompt + max(1, fitting))
        return fitting

    def _block_drafter(self) -> DFlashDrafter | None:
        """The drafter that is a model, alone or beside lookup."""
        found = without_lookup(self.drafter)
        return found if isinstance(found, DFlashDrafter) else None

    def _bound_drafter(self, positions: int) -> None:
        """Let the drafter look back on so many tokens only: its memory and time stay bounded, the text is the same."""
        drafter = self._block_drafter()
        if drafter is None:
            raise RequestError(
                "drafter_context needs a drafter that is a model; leave it out.", param="drafter_context"
            )
        if positions < 1:
            raise RequestError(
                f"drafter_context is {positions}; use a number of tokens from 1 up.", param="drafter_context"
            )
        drafter.lookback = positions

    def _memory_guard(self) -> MemoryGuard:
        """Prices a request's caches by what one position takes in real ones."""
        cache = self._new_cache()
        with cache.append(1):
            self.target.forward(mx.array([[0]]), cache.layers)
        mx.eval(cache.arrays())
        grown = 0
        if self.drafter is not None and (features := self.target.features()) is not None:
            context = self.drafter.new_context()
            self.drafter.extend(context, features[:1])
            mx.eval(context.arrays())
            grown = context.nbytes // CHUNK
        block = self._block_drafter()
        bound = None if block is None else block.lookback
        # Rows a bounded layer keeps: what it looks back on, a chunk to spare and one to grow by.
        fixed = 0 if bound is None else grown * (bound + 2 * CHUNK)
        return MemoryGuard(
            memory_limit,
            CacheCost.of(cache),
            self.target.config,
            weights=self.target.nbytes,
            drafter=getattr(self.drafter, "nbytes", 0) + fixed,
            drafter_per_position=grown if bound is None else 0,
            chunk=self.prefill_chunk,
            bytes_per_value=self.target.dtype.size,
            evict=self.prefixes.evict,
        )

    def _answer(
        self,
        request: GenerationRequest,
        index: int,
        prompt: Sequence[int],
        chooser: Chooser,
        seed: int,
        policy: DepthPolicy,
        budget: int,
        cancelled: Cancelled,
    ) -> Iterator[Event]:
        tally = Tally(len(prompt))
        wants_exact = self.exact if request.exact is None else request.exact
        noise = self._unequal_rows() if wants_exact else None
        # An exact answer must not start from rows of rounds that were not, nor leave such rows to one.
        apart = noise is not None if wants_exact else self.exact
        session = self._session(request, prompt, reuse=request.use_cache and wants_exact == self.exact)
        with session.lasting(self.prefixes if request.use_cache else None):
            tally.cached_tokens = session.cache.length
            yield Started(index, prompt_tokens=len(prompt), cached_tokens=tally.cached_tokens, seed=seed)
            answer = Answer(request, index, self.target.tokenizer, self.target.eos, prompt, chooser)
            for done in session.prefill(self.prefill_chunk, cancelled):
                yield PrefillProgress(index, done=done, total=len(prompt) - 1)
            tally.prefilled()
            if apart:
                session.keep = session.cache.checkpoint()

            rounds = Rounds(
                session,
                chooser,
                policy,
                temperature=request.sampling.temperature,
                budget=budget,
                ends_answer=answer.ends,
                noise_seed=seed if _coupled(request) else None,
                ops=self.ops,
                device_case=self.device_case,
                exact=None if noise is None else Exact(session, chooser, noise),
            )
            for committed in run(rounds, cancelled):
                tally.add(committed)
                yield _round_event(index, committed)
                yield from answer.events(committed)
            yield from answer.finish()
        reason: FinishReason = "length"
        if not rounds.finished:
            reason = "cancelled"
        elif answer.stopped or chooser.must_stop():
            reason = "stop"
        stats = tally.stats(answer.thinking_tokens)
        yield Finished(index, reason=reason, matched_stop=answer.matched_stop, stats=stats)

    def _new_cache(self) -> TargetCache:
        layers = self.target.make_cache()
        return TargetCache(layers if self.kv_bits is None else quantize_layers(layers, self.kv_bits))

    def _disk_tier(self, nbytes: int) -> DiskTier:
        """Prefixes that outlive the process; they only fit what computed them."""
        target, drafter = self.target, self.drafter
        reads = "none" if drafter is None else f"{drafter.kind} {drafter.taps}"
        parts = (target.name, target.revision, target.dtype, self.kv_bits, reads, *(["exact"] if self.exact else []))
        folder = Path(platformdirs.user_cache_dir("macspec", appauthor=False)) / "prefixes"
        return DiskTier(folder, nbytes, "|".join(map(str, parts)))

    def _session(self, request: GenerationRequest, prompt: Sequence[int], *, reuse: bool) -> Session:
        if reuse:
            start = self.prefixes.take(prompt, lambda: repeated_prefix(request, self.target.tokenizer, prompt))
        else:
            context = None if self.drafter is None else self.drafter.new_context()
            start = Reuse(self._new_cache(), context, 0)
        return Session(self.target, self.drafter, list(prompt), start, self.library)


def _coupled(request: GenerationRequest) -> bool:
    """Whether to draft with the target's noise: as asked, else where measuring showed that it pays."""
    return request.sampling.temperature >= COUPLED_FROM if request.coupled is None else request.coupled


def _round_event(index: int, committed: Committed) -> Round:
    outcome = committed.outcome
    return Round(
        index,
        drafted=outcome.drafted,
        verified=outcome.depth,
        accepted=outcome.accepted,
        committed=outcome.committed,
        reason=committed.decision.reason,
        draft_ms=outcome.draft_ms,
        verify_ms=outcome.verify_ms,
        other_ms=outcome.other_ms,
        redecided=committed.redecided,
        redecide_ms=committed.redecide_ms,
    )
