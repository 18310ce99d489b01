"""Keeps profiles in the user's cache directory, one JSON file per pair, chip and power mode."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from macspec.profiling.identity import difference, slug
from macspec.scheduler.ladder import Ladder, LadderError
from macspec.scheduler.store import write_atomically

SCHEMA = 1


@dataclass(frozen=True)
class Profile:
    """A measured ladder and what it belongs to."""

    ladder: Ladder
    identity: Mapping[str, Any]
    measured_at: float = 0.0
    #: Measured on a busy or hot machine; measured again at the next calm start.
    doubtful: bool = False
    warnings: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """JSON values of the profile."""
        return {
            "schema": SCHEMA,
            "identity": dict(self.identity),
            "measured_at": self.measured_at,
            "doubtful": self.doubtful,
            "warnings": list(self.warnings),
            "ladder": self.ladder.to_json(),
        }


class ProfileStore:
    """The profiles of one user.

    Args:
        folder: None takes the user's cache directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(platformdirs.user_cache_dir("macspec", appauthor=False)) / "profiles"

    def path(self, identity: Mapping[str, Any]) -> Path:
        """File of a pair's ladder."""
        return self.folder / f"{slug(identity)}.json"

    def survival_path(self, identity: Mapping[str, Any], source: str = "") -> Path:
        """File of what was learned of a pair's drafts, by kind of proposer where a drafter has several."""
        return self.folder / f"{slug(identity)}.{source or 'draft'}.survival.json"

    def load(self, identity: Mapping[str, Any]) -> tuple[Profile | None, str]:
        """The stored profile and "", or None and a sentence saying why it has to be measured."""
        path = self.path(identity)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None, "This pair was not measured on this machine yet."
        except (OSError, ValueError):
            return None, f"The profile {path} is damaged."
        if not isinstance(values, dict) or values.get("schema") != SCHEMA:
            return None, f"The profile {path} is of another version."
        stored = values.get("identity")
        if not isinstance(stored, dict):
            return None, f"The profile {path} is damaged."
        changed = difference(stored, identity)
        if changed:
            return None, f"The stored profile no longer fits: {changed}."
        try:
            ladder = Ladder.from_json(values.get("ladder"), name="measured")
        except LadderError as error:
            return None, error.message
        if ladder.max_rows != int(identity["depth"]) + 1:
            return None, "The stored profile no longer fits: the block has another size."
        if values.get("stale"):
            return None, "The stored profile no longer fits: rounds have been taking other times than it says."
        warnings = tuple(str(item) for item in values.get("warnings", ()))
        measured = values.get("measured_at")
        when = float(measured) if isinstance(measured, (int, float)) else 0.0
        return Profile(ladder, stored, when, bool(values.get("doubtful")), warnings), ""

    def save(self, profile: Profile) -> Path:
        """Store a profile in place of the pair's old one, at once."""
        path = self.path(profile.identity)
        write_atomically(path, json.dumps(profile.to_json(), indent=1))
        return path

    def mark_stale(self, identity: Mapping[str, Any]) -> None:
        """Have the pair measured again next time: what rounds take has left what the ladder can be corrected by."""
        path = self.path(identity)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(values, dict):
            write_atomically(path, json.dumps({**values, "stale": True}, indent=1))

    @staticmethod
    def now() -> float:
        """Seconds since 1970."""
        return time.time()
