"""Hidden-state taps: read what chosen layers of a target put out, without touching any class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from macspec_models.errors import CheckpointError


class Tap(nn.Module):  # type: ignore[misc]  # MLX ships no types
    """Stands in for one decoder layer of one model instance and remembers the layer's last output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.tapped = layer
        self.output: mx.array | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.tapped(*args, **kwargs)
        # A plain attribute, not a parameter: it must not show up among the weights.
        object.__setattr__(self, "output", result[0] if isinstance(result, tuple) else result)
        return result

    def __getattr__(self, name: str) -> Any:
        # Models ask their layers for properties such as `is_linear` or `use_sliding`.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("tapped"), name)


class Taps:
    """The taps of one model instance."""

    def __init__(self, layers: list[nn.Module], numbers: Sequence[int]) -> None:
        """Tap the outputs of ``layers[number]`` for every number.

        Args:
            layers: the very list the model iterates over.
            numbers: ascending layer numbers; the output *after* that layer is tapped.
        """
        wrong = [number for number in numbers if not 0 <= number < len(layers)]
        if wrong:
            raise CheckpointError(
                f"The drafter reads target layer {wrong[0]}, but this target has {len(layers)} layers; "
                "it was made for another model."
            )
        self._layers, self.numbers = layers, tuple(sorted(numbers))
        for number in self.numbers:
            layers[number] = Tap(layers[number])

    def remove(self) -> None:
        """Put the original layers back."""
        for number in self.numbers:
            self._layers[number] = self._layers[number].tapped

    def features(self) -> mx.array:
        """Concatenated outputs of the last forward pass, ``[n, taps * width]``."""
        outputs = [self._layers[number].output for number in self.numbers]
        return mx.concatenate(outputs, axis=-1)[0]
