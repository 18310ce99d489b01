"""The cost ladder: measured milliseconds of everything a round may do. Immutable, validated, JSON in and out."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from macspec.errors import MacspecError

#: Raised whenever the meaning of a stored field changes; other versions are measured again.
SCHEMA = 1


class LadderError(MacspecError):
    """A cost ladder cannot be used; the message says why and how to get a good one."""

    exit_code = 2
    code = "ladder_unusable"


@dataclass(frozen=True)
class Ladder:
    """Milliseconds per pass as measured on one machine with one target, one drafter and one kernel set.

    ``verify[c][r - 1]`` is a verification pass of ``r`` rows with ``contexts[c]`` tokens in the caches, for every row
    count from 1 up; ``draft[c]`` one full block's draft; ``replay[a]`` running the anchor and ``a`` accepted rows again
    after a partial acceptance (empty when rolling back is free); ``overhead`` and ``plain_overhead`` what a drafted and
    a plain round cost besides (host synchronisation, Python). Raises `LadderError` for anything not measurable.
    """

    contexts: tuple[int, ...]
    verify: tuple[tuple[float, ...], ...]
    draft: tuple[float, ...]
    overhead: float = 0.0
    plain_overhead: float = 0.0
    replay: tuple[float, ...] = ()
    name: str = "measured"
    source: str = ""
    #: Conditions worth keeping beside the numbers (chip, versions, load); not used for decisions.
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.contexts or any(b <= a for a, b in zip(self.contexts, self.contexts[1:], strict=False)):
            self._refuse("its context lengths are missing or not ascending")
        if self.contexts[0] < 0:
            self._refuse("a context length is negative")
        if len(self.verify) != len(self.contexts) or len(self.draft) != len(self.contexts):
            self._refuse(f"it has {len(self.contexts)} context lengths but not one verify row and draft time for each")
        widths = {len(row) for row in self.verify}
        if len(widths) != 1:
            self._refuse("its row counts differ between context lengths")
        if min(widths) < 2:
            self._refuse(f"it has {min(widths)} row count and a slope needs at least two")
        for row in self.verify:
            for rows, ms in enumerate(row, 1):
                if not math.isfinite(ms) or ms <= 0:
                    self._refuse(f"a pass of {rows} rows is said to take {ms} ms")
        for label, times in (("draft", self.draft), ("replay", self.replay), ("overhead", self._overheads())):
            for ms in times:
                if not math.isfinite(ms) or ms < 0:
                    self._refuse(f"its {label} time is {ms} ms")

    def _overheads(self) -> tuple[float, float]:
        return self.overhead, self.plain_overhead

    def _refuse(self, why: str) -> None:
        raise LadderError(
            f"The cost ladder {self.name!r} cannot be used: {why}. Measure it again with: macspec profile --reprofile"
        )

    @property
    def max_rows(self) -> int:
        """The largest row count measured."""
        return len(self.verify[0])

    def curve(self, context: int) -> list[float]:
        """Milliseconds of verification for 1, 2, … ``max_rows`` rows at ``context`` cached tokens.

        Linear between measured contexts; beyond the longest the last slope goes on, but never falls.
        """
        low, high, weight = self._position(context)
        a, b = self.verify[low], self.verify[high]
        if weight <= 1.0:
            return [x + weight * (y - x) for x, y in zip(a, b, strict=True)]
        return [y + (weight - 1.0) * max(0.0, y - x) for x, y in zip(a, b, strict=True)]

    def draft_ms(self, context: int) -> float:
        """Milliseconds to draft a block at ``context`` cached tokens."""
        low, high, weight = self._position(context)
        a, b = self.draft[low], self.draft[high]
        return a + weight * (b - a) if weight <= 1.0 else b + (weight - 1.0) * max(0.0, b - a)

    def _position(self, context: int) -> tuple[int, int, float]:
        points = self.contexts
        if len(points) == 1 or context <= points[0]:
            return 0, 0, 0.0
        high = min(bisect_right(points, context), len(points) - 1)
        low = high - 1
        return low, high, (context - points[low]) / (points[high] - points[low])

    def to_json(self) -> dict[str, Any]:
        """JSON values of the ladder."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "source": self.source,
            "contexts": list(self.contexts),
            "verify_ms": [list(row) for row in self.verify],
            "draft_ms": list(self.draft),
            "replay_ms": list(self.replay),
            "overhead_ms": self.overhead,
            "plain_overhead_ms": self.plain_overhead,
            "notes": dict(self.notes),
        }

    @classmethod
    def from_json(cls, values: Any, *, name: str = "measured") -> Self:
        """Inverse of `to_json`; raises `LadderError` naming the field that is missing or of the wrong kind."""
        if not isinstance(values, Mapping):
            raise LadderError(f"The cost ladder {name!r} cannot be used: it is not a JSON object.")
        if values.get("schema") != SCHEMA:
            raise LadderError(
                f"The cost ladder {name!r} has schema {values.get('schema')!r} and this version reads {SCHEMA}. "
                "Measure it again with: macspec profile --reprofile"
            )
        try:
            return cls(
                contexts=tuple(int(value) for value in values["contexts"]),
                verify=tuple(_times(row) for row in values["verify_ms"]),
                draft=_times(values["draft_ms"]),
                overhead=float(values.get("overhead_ms", 0.0)),
                plain_overhead=float(values.get("plain_overhead_ms", 0.0)),
                replay=_times(values.get("replay_ms", ())),
                name=str(values.get("name", name)),
                source=str(values.get("source", "")),
                notes=dict(values.get("notes", {})),
            )
        except KeyError as error:
            raise LadderError(f"The cost ladder {name!r} cannot be used: it has no {error.args[0]!r}.") from error
        except (TypeError, ValueError) as error:
            raise LadderError(f"The cost ladder {name!r} cannot be used: a value is no number ({error}).") from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """The ladder in a JSON file; raises `LadderError` when it is missing or damaged."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise LadderError(f"There is no cost ladder at {path}.") from error
        except (OSError, ValueError) as error:
            raise LadderError(f"The cost ladder {path} cannot be read ({error}).") from error
        return cls.from_json(values, name=path.stem)

    @classmethod
    def single(
        cls, verify: Sequence[float], draft: float = 0.0, *, name: str = "measured", overhead: float = 0.0
    ) -> Self:
        """A ladder of one context length: milliseconds for 1, 2, … rows and of a draft."""
        return cls((0,), (tuple(verify),), (draft,), overhead=overhead, name=name)


def _times(values: Any) -> tuple[float, ...]:
    if isinstance(values, str):
        raise TypeError("text where numbers were expected")
    return tuple(float(value) for value in values)
