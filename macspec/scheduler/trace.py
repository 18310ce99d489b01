"""Recorded rounds as JSON lines: what `macspec bench --trace` writes and `macspec simulate` reads.

The first line is the header, an object with ``kind`` "macspec-trace", ``schema`` and what is known of the run
(``target``, ``drafter``, ``machine``, ``ladder``; all optional). Every other line is one round:

=================  ====================================================================================
``text``           number of the answer it belongs to; learning carries on, positions start again
``tag``            category of the prompt
``position``       tokens generated before it
``context``        tokens in the caches
``temperature``    of the request
``confidence``     one ``[probability, gap, entropy]`` per draft token, first slot first
``depth``          draft tokens verified
``accepted``       how many of them were accepted
``draft_ms``       and ``verify_ms``, ``other_ms``: measured times, 0 where not recorded
``chances``        true conditional acceptance per slot; synthetic traces only
``features``       inputs of a trained length predictor; optional
=================  ====================================================================================

In a *stream* trace the lines are the rounds of a run one after the other. When the header says ``every_position`` a
draft was recorded at each generated token, and a replay can move by what it commits exactly: the text does not depend
on speculation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from macspec.errors import MacspecError
from macspec.scheduler.interface import SlotConfidence

KIND = "macspec-trace"
SCHEMA = 1


class TraceError(MacspecError):
    """A trace file cannot be used; the message names the line."""

    exit_code = 2
    code = "trace_unusable"


@dataclass(frozen=True, slots=True)
class TraceRound:
    """One recorded round; the fields are described in the module's docstring."""

    confidence: tuple[SlotConfidence, ...]
    depth: int
    accepted: int
    text: int = 0
    tag: str = ""
    position: int = 0
    context: int = 0
    temperature: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0
    chances: tuple[float, ...] = ()
    features: tuple[float, ...] = ()

    @property
    def censored(self) -> bool:
        """Whether verification was cut before the first rejection, so that full acceptance is unknown."""
        return self.accepted == self.depth < len(self.confidence)

    def to_json(self) -> dict[str, Any]:
        """JSON values of one line."""
        values: dict[str, Any] = {
            "text": self.text,
            "tag": self.tag,
            "position": self.position,
            "context": self.context,
            "temperature": self.temperature,
            "confidence": [[_short(c.probability), _short(c.gap), _short(c.entropy)] for c in self.confidence],
            "depth": self.depth,
            "accepted": self.accepted,
            "draft_ms": _short(self.draft_ms),
            "verify_ms": _short(self.verify_ms),
            "other_ms": _short(self.other_ms),
        }
        if self.chances:
            values["chances"] = [_short(x) for x in self.chances]
        if self.features:
            values["features"] = [_short(x) for x in self.features]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`; raises KeyError, TypeError or ValueError on anything that is no round."""
        confidence = tuple(SlotConfidence(*(_number(x) for x in slot)) for slot in values["confidence"])
        depth, accepted = int(values["depth"]), int(values["accepted"])
        if not 0 <= accepted <= depth <= len(confidence):
            raise ValueError(f"accepted {accepted}, depth {depth} and {len(confidence)} draft tokens do not agree")
        return cls(
            confidence=confidence,
            depth=depth,
            accepted=accepted,
            text=int(values.get("text", 0)),
            tag=str(values.get("tag", "")),
            position=int(values.get("position", 0)),
            context=int(values.get("context", 0)),
            temperature=_number(values.get("temperature", 0.0)),
            draft_ms=_number(values.get("draft_ms", 0.0)),
            verify_ms=_number(values.get("verify_ms", 0.0)),
            other_ms=_number(values.get("other_ms", 0.0)),
            chances=tuple(_number(x) for x in values.get("chances", ())),
            features=tuple(_number(x) for x in values.get("features", ())),
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run."""

    rounds: tuple[TraceRound, ...]
    header: Mapping[str, Any] = field(default_factory=dict)
    #: Rounds left out because they were cut before the first rejection.
    censored: int = 0

    @property
    def every_position(self) -> bool:
        """Whether there is a draft for each generated token."""
        return bool(self.header.get("every_position"))

    @property
    def slots(self) -> int:
        """Most draft tokens in a round."""
        return max((len(item.confidence) for item in self.rounds), default=0)


class TraceWriter:
    """Writes a trace line by line, so that an interrupted run leaves the rounds it made."""

    def __init__(self, stream: IO[str], header: Mapping[str, Any] | None = None) -> None:
        self._stream = stream
        self._line({"kind": KIND, "schema": SCHEMA, **(header or {})})

    def add(self, item: TraceRound) -> None:
        """Append one round."""
        self._line(item.to_json())

    def _line(self, values: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(values, separators=(",", ":")) + "\n")


def write_trace(path: Path, rounds: Iterable[TraceRound], header: Mapping[str, Any] | None = None) -> None:
    """Write a whole trace."""
    with path.open("w", encoding="utf-8") as stream:
        writer = TraceWriter(stream, header)
        for item in rounds:
            writer.add(item)


def read_trace(path: Path) -> Trace:
    """The trace in a file, without the rounds that were cut before the first rejection.

    Raises `TraceError` naming the line that is damaged; a last line cut short by an interrupted run is left out.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"The trace {path} cannot be read ({error}).") from error
    header = _json(path, 1, lines[0]) if lines else None
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise TraceError(f"{path} is no trace; record one with: macspec bench --trace FILE")
    if header.get("schema") != SCHEMA:
        raise TraceError(f"The trace {path} has schema {header.get('schema')!r} and this version reads {SCHEMA}.")
    rounds = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            rounds.append(TraceRound.from_json(_json(path, number, line)))
        except TraceError:
            if number == len(lines):
                break
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"Line {number} of the trace {path} is no round ({error}).") from error
    whole = tuple(item for item in rounds if not item.censored)
    if not whole:
        raise TraceError(
            f"The trace {path} holds no round verified to its first rejection; record it with --depth full."
        )
    return Trace(whole, header, len(rounds) - len(whole))


def _json(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise TraceError(f"Line {number} of the trace {path} is damaged ({error}).") from error


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not finite")
    return number


def _short(value: float) -> float:
    return round(value, 5)


def confidences(values: Sequence[Sequence[float]]) -> tuple[SlotConfidence, ...]:
    """`SlotConfidence` of each ``[probability, gap, entropy]``, as the device hands them over."""
    return tuple(SlotConfidence(float(p), float(gap), float(entropy)) for p, gap, entropy in values)
