"""Single modules of a model in exchange for instances of ours, and back.

No class and no function of mlx-lm is changed: an instance shares the original's arrays and parameter names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mlx import nn

from macspec.kernels.probe import Case

#: Where a module sits: the module, list or dict that holds it, and its name or index there.
Place = tuple[Any, Any]


class Replacement:
    """The modules of one model that were replaced."""

    def __init__(self) -> None:
        self._originals: list[tuple[Place, nn.Module]] = []
        self._cases: dict[str, Case] = {}

    def __len__(self) -> int:
        return len(self._originals)

    @property
    def cases(self) -> list[Case]:
        """What the library should `prepare`."""
        return list(self._cases.values())

    def put(self, place: Place, old: nn.Module, new: nn.Module, found: Iterable[Case] = ()) -> None:
        """Put ``new`` where ``old`` sits; ``found`` are the cases it asks the library for."""
        holder, key = place
        holder[key] = new
        self._originals.append((place, old))
        self._cases.update({case.name: case for case in found})

    def remove(self) -> None:
        """Put the original modules back, last replaced first."""
        for (holder, key), module in reversed(self._originals):
            holder[key] = module
        self._originals = []


def adopt_module(new: nn.Module, old: nn.Module) -> None:
    """Make ``new`` hold the arrays, children and plain attributes of ``old``."""
    nn.Module.__init__(new)
    for name, value in old.items():
        new[name] = value
    for name, value in vars(old).items():
        object.__setattr__(new, name, value)


def places(holder: Any) -> Iterator[tuple[Place, Any]]:
    """Every module below ``holder`` and where it sits."""
    for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if isinstance(value, nn.Module):
            yield (holder, key), value
        if isinstance(value, dict | list):
            yield from places(value)
