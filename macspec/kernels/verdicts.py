"""What a kernel proved on this machine, and where that is kept. No MLX here.

A verdict belongs to one case (kernel, shape, dtype, rows), to the text of the kernel, and to the chip, system and MLX
version it was reached with; when any of those changes it no longer counts. While a case is being probed its name is on
disk: if the process dies in it, the next start finds the name and gives the case up instead of dying again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import platformdirs

from macspec.scheduler.store import write_atomically

SCHEMA = 1


class Outcome(StrEnum):
    """How a probe ended."""

    WINS = "wins"
    SLOWER = "slower"
    WRONG = "wrong"
    ERROR = "error"
    STALLED = "stalled"
    CRASHED = "crashed"
    FAILED = "failed at run time"


#: Outcomes after which the kernel computes the right thing here.
RIGHT = frozenset({Outcome.WINS, Outcome.SLOWER})


@dataclass(frozen=True)
class Verdict:
    """The result of one case.

    ratio: stock time / kernel time, None when not raced. max_error: largest error found, in units of the bound.
    """

    outcome: Outcome
    reason: str
    digest: str
    ratio: float | None = None
    max_error: float | None = None


class VerdictStore:
    """The verdicts of one machine and MLX version, in one JSON file beside the cost ladders.

    Args:
        identity: whatever verdicts depend on, as JSON values: chip, system, MLX version.
        folder: None takes the user's cache directory.
    """

    def __init__(self, identity: Mapping[str, Any], folder: Path | None = None) -> None:
        folder = folder or Path(platformdirs.user_cache_dir("macspec", appauthor=False)) / "profiles"
        self.path = folder / "kernels.json"
        self.identity = dict(identity)
        #: Why earlier verdicts do not count, or "".
        self.stale = ""
        self.verdicts: dict[str, Verdict] = self._read()

    def get(self, case: str, digest: str) -> Verdict | None:
        """The verdict of a case, None when there is none or the kernel's text has changed since."""
        verdict = self.verdicts.get(case)
        return verdict if verdict is not None and verdict.digest == digest else None

    def begin(self, case: str, digest: str) -> None:
        """Write down that ``case`` is about to run for the first time."""
        self._write(started={"case": case, "digest": digest})

    def put(self, case: str, verdict: Verdict) -> None:
        """Keep a verdict, at once."""
        self.verdicts[case] = verdict
        self._write(started=None)

    def _read(self) -> dict[str, Verdict]:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            if values["schema"] != SCHEMA:
                self.stale = "They were written by another version of macspec."
                return {}
            changed = [
                n for n in {*values["identity"], *self.identity} if values["identity"].get(n) != self.identity.get(n)
            ]
            if changed:
                name = min(changed)
                self.stale = f"{name} changed from {values['identity'].get(name)} to {self.identity.get(name)}."
                return {}
            verdicts = {
                case: Verdict(**{**entry, "outcome": Outcome(entry["outcome"])})
                for case, entry in values["verdicts"].items()
            }
            started = values["started"]
            if started is not None:
                reason = "The engine process ended while this case was being probed."
                verdicts[started["case"]] = Verdict(Outcome.CRASHED, reason, started["digest"])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.stale = f"{self.path} is damaged."
            return {}
        return verdicts

    def _write(self, started: dict[str, str] | None) -> None:
        values = {
            "schema": SCHEMA,
            "identity": self.identity,
            "started": started,
            "verdicts": {case: asdict(verdict) for case, verdict in self.verdicts.items()},
        }
        write_atomically(self.path, json.dumps(values, indent=1))
