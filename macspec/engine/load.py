"""Find and load a target and its drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from macspec_models import embedded
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.interface import Drafter
from macspec_models.errors import ModelMissingError
from macspec_models.target import Target

#: Called with a stage, the amount done and the amount in all (0 when unknown).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Pair:
    """A loaded target with its drafter, or the reason why there is none."""

    target: Target
    drafter: Drafter | None
    drafter_reason: str = ""


def load_pair(
    model: str | None = None,
    drafter: str | None = None,
    *,
    dtype: str | None = None,
    progress: Progress | None = None,
) -> Pair:
    """Load by registry name, local folder or hub id.

    Args:
        model: None takes the embedded model.
        drafter: None takes the drafter known for the model; ``none`` loads none.
        dtype: cast the target's weights to ``float32``, ``float16`` or ``bfloat16``.

    Raises:
        ModelError: nothing of that name, or it cannot be used; the message says what to do.
    """
    report = progress or (lambda stage, done, total: None)
    name = model or embedded.NAME
    if name == embedded.NAME:
        folder = embedded.target_folder(progress=report)
    else:
        folder = _folder(name, "model")
    report(f"loading {name}", 0, 0)
    target = Target.load(folder, name=name if name == embedded.NAME else folder.name, dtype=dtype)
    if drafter == "none":
        return Pair(target, None, "no drafter was asked for")
    if drafter is None and name != embedded.NAME:
        return Pair(target, None, f"no drafter is known for {name}; name one with --drafter")
    draft_folder = embedded.drafter_folder() if drafter is None else _folder(drafter, "drafter")
    report("loading the drafter", 0, 0)
    return Pair(target, load_drafter(draft_folder, target))


def _folder(name: str, what: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    raise ModelMissingError(f"There is no {what} {name!r}: it is neither a known name nor a folder here.")


