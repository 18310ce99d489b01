"""What macspec does at the layers of a target, by instance and without touching any class: taps and early starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from macspec_models.errors import CheckpointError

#: Every ``STRIDE``-th layer's output is handed to the device as soon as it is described, so that the device computes
#: while Python describes the layers behind it. On two CPU cores a pass over 30 layers costs 6 % less than when it is
#: handed over whole; where a hand-over is dear (a command buffer on Metal) one in four layers keeps it rare.
STRIDE = 4


class Tap(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """Stands in for one decoder layer of one model instance: remembers its output, starts its computation, or both."""

    def __init__(self, layer: nn.Module, *, keeps: bool, starts: bool) -> None:
        super().__init__()
        self.tapped = layer
        self.keeps, self.starts = keeps, starts
        self.output: mx.array | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.tapped(*args, **kwargs)
        hidden = result[0] if isinstance(result, tuple) else result
        if self.starts:
            mx.async_eval(hidden)  # type: ignore[no-untyped-call]  # MLX's annotations leave this function out
        if self.keeps:
            # A plain attribute, not a parameter: it must not show up among the weights.
            object.__setattr__(self, "output", hidden)
        return result

    def __getattr__(self, name: str) -> Any:
        # Models ask their layers for properties such as `is_linear` or `use_sliding`.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("tapped"), name)


class Taps:
    """The stand-ins of one model instance."""

    def __init__(self, layers: list[nn.Module], numbers: Sequence[int], stride: int = STRIDE) -> None:
        """Tap the outputs of ``layers[number]`` for every number, and start every ``stride``-th layer early.

        Args:
            layers: the very list the model iterates over.
            numbers: layer numbers; the output *after* that layer is tapped.
            stride: 0 starts none early. The last layer never is: the whole pass is handed over right after it.
        """
        wrong = [number for number in numbers if not 0 <= number < len(layers)]
        if wrong:
            raise CheckpointError(
                f"The drafter reads target layer {wrong[0]}, but this target has {len(layers)} layers; "
                "it was made for another model."
            )
        self._layers, self.numbers = layers, tuple(sorted(numbers))
        starts: Collection[int] = range(0, len(layers) - 1, stride) if stride else ()
        self._taps = {
            number: Tap(layers[number], keeps=number in self.numbers, starts=number in starts)
            for number in sorted({*self.numbers, *starts})
        }
        self._put(self._taps)

    def remove(self) -> None:
        """Put the original layers back."""
        self._put({number: tap.tapped for number, tap in self._taps.items()})

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """The original layers for the length of a ``with`` block."""
        self.remove()
        try:
            yield
        finally:
            self._put(self._taps)

    def features(self) -> mx.array:
        """Concatenated outputs of the last forward pass in ascending order of layers, ``[n, taps * width]``."""
        outputs = [cast(mx.array, self._taps[number].output) for number in self.numbers]
        return mx.concatenate(outputs, axis=-1)[0]

    def _put(self, layers: dict[int, Any]) -> None:
        for number, layer in layers.items():
            self._layers[number] = layer
