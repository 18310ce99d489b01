"""State-space, short-convolution and RWKV layers that remember a verification pass, so that it need not run again.

The counterpart of `macspec.kernels.replay` for recurrent layers without a kernel of their own. A *mixer* is the module
that updates the recurrent state. Keeping part of a pass runs it, and nothing else of the model, over the rows that
stay, from the state before the pass; its large projections, which work row by row, answer with the rows they gave.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ArraysCache

from macspec.kernels.calls import MAX_ROWS

#: Module and class in ``mlx_lm.models`` of every mixer; its projections that are called once per pass, on all rows.
MIXERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("falcon_h1", "FalconH1Mixer"): ("in_proj",),
    ("granitemoehybrid", "GraniteMoeHybridMamba2Mixer"): ("in_proj",),
    ("jamba", "JambaMambaMixer"): ("in_proj",),
    ("kimi_linear", "KimiDeltaAttention"): ("q_proj", "k_proj", "v_proj", "f_b_proj", "b_proj"),
    ("lfm2", "ShortConv"): ("in_proj",),
    ("lfm2_moe", "ShortConv"): ("in_proj",),
    ("mamba", "MambaBlock"): ("in_proj",),
    ("mamba2", "Mamba2Block"): ("in_proj",),
    ("nemotron_h", "NemotronHMamba2Mixer"): ("in_proj",),
    ("recurrent_gemma", "RecurrentBlock"): ("linear_x",),
    ("rwkv7", "Rwkv7TimeMixing"): ("r_proj", "k_proj", "v_proj", "a_lora", "v_lora", "w_lora"),
    ("rwkv7", "Rwkv7ChannelMixing"): (),
}
#: Mixers that are handed a mask, the one for attention, and do not look at it.
UNMASKED = {("recurrent_gemma", "RecurrentBlock")}


@dataclass(frozen=True)
class MixerRecord:
    """What the mixers of one layer need to keep the first rows of their last pass.

    before: the layer's cache arrays before the pass. mixers: runs each mixer over its argument's number of first rows
    on a cache, in the order of the pass.
    """

    rows: int
    before: tuple[mx.array | None, ...]
    mixers: dict[int, Callable[[int, ArraysCache], None]] = field(default_factory=dict)

    def after(self, accepted: int) -> list[mx.array | None]:
        """The layer's cache arrays after the first ``accepted`` rows."""
        cache = ArraysCache(len(self.before))
        cache.cache = list(self.before)
        for again in self.mixers.values():
            again(accepted, cache)
        # Windows of a convolution are views of longer arrays.
        return [None if array is None else mx.contiguous(array) for array in cache.cache]


@dataclass
class Rows:
    """What a projection gave in the last pass, and what it is to give instead of computing; ``[1, rows, width]``."""

    given: mx.array | None = None
    again: mx.array | None = None


class KeptProjection(nn.Module):  # type: ignore[misc]  # MLX is untyped
    """Stands in for one projection of a mixer and lets go of its output only when `RecordedMixer` has taken it."""

    def __init__(self, projection: nn.Module, rows: Rows) -> None:
        super().__init__()
        self.projection = projection
        self._rows = rows

    def __call__(self, x: mx.array) -> Any:
        """``[1, rows, in]`` to ``[1, rows, out]``."""
        if self._rows.again is not None:
            return self._rows.again
        self._rows.given = self.projection(x)
        return self._rows.given


class Projections:
    """The projections of one mixer that need not run again."""

    def __init__(self, mixer: nn.Module, names: Iterable[str]) -> None:
        self._rows: list[Rows] = []
        for name in names:
            if name in mixer:
                self._rows.append(Rows())
                mixer[name] = KeptProjection(mixer[name], self._rows[-1])

    def take(self) -> list[mx.array | None]:
        """What they gave in the last pass; they forget it."""
        given = [rows.given for rows in self._rows]
        for rows in self._rows:
            rows.given = None
        return given

    @contextmanager
    def repeating(self, given: list[mx.array | None], count: int) -> Iterator[None]:
        """Inside, they give the first ``count`` rows of ``given``."""
        for rows, output in zip(self._rows, given, strict=True):
            rows.again = None if output is None else output[:, :count]
        try:
            yield
        finally:
            for rows in self._rows:
                rows.again = None


class RecordedMixer(nn.Module):  # type: ignore[misc]  # MLX is untyped
    """Stands in for one mixer of one model instance and leaves a `MixerRecord` in its cache (``cache.record``)."""

    def __init__(self, mixer: nn.Module, projections: Iterable[str], *, masked: bool = True) -> None:
        super().__init__()
        self.mixer, self.masked = mixer, masked
        self._projections = Projections(mixer, projections)
        self._signature = inspect.signature(mixer.__call__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever the mixer makes of its inputs ``[1, rows, hidden]``."""
        given = self._signature.bind(*args, **kwargs).arguments
        if not self.masked:
            given.pop("mask", None)
        batch, rows, _ = next(iter(given.values())).shape
        cache: Any = given.get("cache")
        before = () if cache is None else tuple(cache.cache)
        made, outputs = self.mixer(**given), self._projections.take()
        usable = batch == 1 and 1 < rows <= MAX_ROWS and given.get("mask") is None
        if not usable or cache is None or cache.lengths is not None:
            return made
        record = getattr(cache, "record", None)
        if record is None or record.rows != rows or id(self) in record.mixers:
            record = cache.record = MixerRecord(rows, before)

        def again(count: int, cache: ArraysCache) -> None:
            first = {name: value[:, :count] if isinstance(value, mx.array) else value for name, value in given.items()}
            with self._projections.repeating(outputs, count):
                self.mixer(**(first | {"cache": cache}))
            self._projections.take()

        record.mixers[id(self)] = again
        return made

    def __getattr__(self, name: str) -> Any:
        # Models may ask a mixer for its sizes.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("mixer"), name)


def recorded(module: nn.Module) -> RecordedMixer | None:
    """A stand-in for ``module`` that records its passes; None when it is no mixer that is known."""
    package, _, file = type(module).__module__.rpartition(".")
    kind = (file, type(module).__name__)
    if package != "mlx_lm.models" or kind not in MIXERS:
        return None
    return RecordedMixer(module, MIXERS[kind], masked=kind not in UNMASKED)
