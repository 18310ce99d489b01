"""An engine that knows its machine: the pair, what verification costs here, and how often drafts survive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx

from macspec.engine.gpu_lock import GpuLock
from macspec.engine.load import Progress, own_counts
from macspec.engine.loop import Cancelled, Engine
from macspec.engine.memory import footprint
from macspec.engine.row_noise import RowNoise
from macspec.kernels.library import library_here
from macspec.kernels.modules import install
from macspec.kernels.round_cases import round_cases
from macspec.machine import describe, state
from macspec.profiling.identity import identity
from macspec.profiling.policies import PolicyMaker, attach
from macspec.profiling.row_noise import RowNoiseStore, noise_identity
from macspec.request import Event, GenerationRequest, Text
from macspec_models import embedded
from macspec_models.drafters.block import DFlashDrafter
from macspec_models.drafters.combined import without_lookup
from macspec_models.drafters.frequency import TokenCounts


def _tell(sentence: str) -> None:
    print(f"macspec: {sentence}", file=sys.stderr)


class Runtime(Engine):
    """What chat, server, bench and the Python API run: an `Engine` whose depth rules are bought from its own ladder."""

    maker: PolicyMaker
    lock: GpuLock
    #: What the user's answers are made of; chooses the tokens a reduced draft head scores.
    counts: TokenCounts | None = None
    #: Name of the kernel set, part of a ladder's identity.
    kernels: str
    _say: Callable[[str], None]
    _noise_key: dict[str, Any]

    @classmethod
    def load(
        cls,
        model: str | None = None,
        drafter: str | None = None,
        *,
        say: Callable[[str], None] = _tell,
        profile: bool = True,
        kernels: str = "probe",
        exact: bool = False,
        **options: Any,
    ) -> Self:
        """Load a pair by registry name, folder or hub id; see `macspec.engine.load.load_pair` for the options.

        Args:
            say: gets one sentence when something is worth knowing, such as a machine too busy to measure.
            profile: measure the pair now if this machine never did, a few seconds; otherwise that happens when a rule
                first needs it.
            kernels: ``off``, ``probe`` (use those that prove right and faster here) or ``force``.
            exact: plain decoding's text also where near-ties could turn; see `macspec.engine.exact`.
        """
        lock = GpuLock()
        lock.acquire()
        try:
            engine = super().load(model, drafter, say=say, exact=exact, **options)
            engine.lock = lock
            engine._say = say
            engine._use_kernels(kernels, options.get("progress"))
        except BaseException:
            lock.release()
            raise
        proposer = without_lookup(engine.drafter)
        reduced = isinstance(proposer, DFlashDrafter) and proposer.head.rows is not None
        engine.counts = own_counts() if reduced and engine.target.name == embedded.NAME else None
        engine.maker = attach(engine, progress=options.get("progress"), say=say)
        if profile and engine.drafter is not None:
            engine.maker.prepare()
        if exact and engine.drafter is not None:
            engine.row_noise()
        return engine

    def _use_kernels(self, mode: str, progress: Progress | None) -> None:
        """Let the kernels that prove themselves on this device take part; on a CPU there are none."""
        library = library_here(mode, exact=self.exact)
        if library.kernels is not None:
            wanted = install(self.target.model, library, kv_bits=self.kv_bits).cases
            library.prepare([*wanted, *round_cases(library.kernels, self.target, self.drafter)], progress)
            self.use(library)
            self.race_device_rounds()
        self.kernels = library.summary

    def row_noise(self) -> RowNoise:
        """As in `Engine`, from this machine's store where it was measured before."""
        if self._noise is None:
            assert self.drafter is not None
            key = noise_identity(identity(self, describe(), state()), self.kernels, self.kv_bits)
            self._noise_key, self._noise = key, RowNoiseStore().load(key)
            if self._noise is None:
                self._say("Exact mode was not measured on this machine yet. Measuring it takes a few seconds.")
                RowNoiseStore().save(key, super().row_noise())
        return super().row_noise()

    def generate(self, request: GenerationRequest, cancelled: Cancelled = lambda: False) -> Iterator[Event]:
        """As in `Engine`; counts the tokens where a reduced draft head is chosen by them."""
        for event in super().generate(request, cancelled):
            if self.counts is not None and isinstance(event, Text):
                self.counts.add(token.id for token in event.tokens)
            yield event

    def info(self) -> dict[str, Any]:
        """What is loaded, as plain values, with the ladder."""
        return {**super().info(), "ladder": self.maker.ladder_ms, "policy": "plain" if self.drafter is None else "rate"}

    def memory(self) -> dict[str, int]:
        """Bytes in use, cached by the allocator, at the peak, of the whole process, and kept for later prompts."""
        return {
            "active": mx.get_active_memory(),
            "cache": mx.get_cache_memory(),
            "peak": mx.get_peak_memory(),
            "footprint": footprint(),
            "prefix_cache": self.prefixes.nbytes,
        }

    def close(self) -> None:
        """Keep what was learned, give the device memory back."""
        self.maker.save()
        if self.counts is not None:
            self.counts.save()
        if self._noise is not None and not self._noise.same_bits:
            RowNoiseStore().save(self._noise_key, self._noise)
        self.prefixes.close()
        mx.clear_cache()
        self.lock.release()
