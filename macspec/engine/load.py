"""Find and load a target and its drafter, after a forecast says that they fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from macspec.engine.memory import check_load, configure, memory_limit
from macspec.machine import describe
from macspec_models import embedded, hub, registry
from macspec_models.checkpoints import load_drafter
from macspec_models.drafters.combined import CombinedDrafter
from macspec_models.drafters.frequency import TokenCounts
from macspec_models.drafters.interface import Drafter
from macspec_models.drafters.lookup import LookupDrafter
from macspec_models.errors import ModelError
from macspec_models.target import Target

#: Called with a stage, the amount done and the amount in all (0 when unknown).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Pair:
    """A loaded target with its drafter, or the reason why there is none."""

    target: Target
    drafter: Drafter | None
    drafter_reason: str = ""


def default_model() -> tuple[str, str]:
    """The model to take when none is named, and a sentence when another would be better or ``""``."""
    if sys.platform != "darwin":
        return embedded.NAME, ""
    best = registry.best_for(describe().memory_bytes or 0)
    if best.name == embedded.NAME or hub.local_folder(best.name) is not None:
        return best.name, ""
    return embedded.NAME, (
        f"Using the small embedded model. This Mac can run {best.title}; to get it ({best.size_gb:.1f} GB): "
        f"macspec models pull {best.name}"
    )


def load_pair(
    model: str | None = None,
    drafter: str | None = None,
    *,
    dtype: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Pair:
    """Load by registry name, local folder or hub id; nothing is downloaded here.

    Args:
        model: None takes the best known one that is on this machine.
        drafter: ``lookup`` looks drafts up in the text so far; ``NAME`` is a model drafter; ``NAME+lookup`` takes
            whichever of both is the better buy each round; ``none`` loads none. None takes the drafter known for the
            model, with lookup.
        dtype: cast the target's weights to ``float32``, ``float16`` or ``bfloat16``.
        say: gets one sentence when another model would be better.

    Raises:
        ModelError: nothing of that name, not here, or unusable; the message says what to do.
        MemoryRefusedError: it would not fit.
    """
    report = progress or (lambda stage, done, total: None)
    if model is None:
        model, hint = default_model()
        if hint:
            say(hint)
    drafter, beside = registry.split_drafter(drafter)
    folder = hub.resolve(model, progress=report)
    draft_folder, reason = _drafter_folder(model, drafter, report)
    _forecast(folder, draft_folder)
    known = registry.find(model)
    report(f"loading {known.name if known else folder.name}", 0, 0)
    target = Target.load(folder, name=known.name if known else folder.name, dtype=dtype)
    if drafter == "lookup":
        return Pair(target, LookupDrafter())
    if draft_folder is None:
        return Pair(target, None, reason)
    report("loading the drafter", 0, 0)
    ours = model == embedded.NAME and drafter in (None, embedded.NAME)
    rows = own_counts().rows(embedded.HEAD_ROWS, target.eos) if ours else None
    loaded: Drafter = load_drafter(draft_folder, target, head_rows=rows)
    return Pair(target, CombinedDrafter(loaded) if beside or drafter is None else loaded)


def own_counts() -> TokenCounts:
    """Token counts of the embedded pair; the user's own part is a file only the user can read."""
    folder = Path(platformdirs.user_data_dir("macspec", appauthor=False)) / "tokens"
    return embedded.token_counts(folder / f"{embedded.NAME}.npz")


def _drafter_folder(model: str, drafter: str | None, report: Progress) -> tuple[Path | None, str]:
    """The drafter's folder, or why there is none. Only a drafter that was asked for by name must exist."""
    if drafter == "none":
        return None, "no drafter was asked for"
    if drafter == "lookup":
        return None, ""
    if drafter is not None:
        return hub.resolve(drafter, part="drafter", progress=report), ""
    pair = registry.find(model)
    if pair is None:
        return None, registry.no_drafter(model)
    try:
        return hub.resolve(pair.name, part="drafter", progress=report), ""
    except ModelError as error:
        return None, error.message


def _forecast(folder: Path, drafter: Path | None) -> None:
    limit = memory_limit()
    configure(limit)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # loading says what is wrong with it
    if isinstance(config, dict):
        check_load(_weights(folder), 0 if drafter is None else _weights(drafter), config, limit)


def _weights(folder: Path) -> int:
    """Bytes of the weight files in a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
