"""Records draft confidences and acceptance at full depth, for `macspec simulate`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macspec.bench.arms import EngineArm
from macspec.bench.export import WriteError
from macspec.bench.samples import Prompt, Settings
from macspec.engine.loop import Engine
from macspec.errors import RequestError
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState
from macspec.scheduler.trace import TraceRound, TraceWriter
from macspec_models.drafters.combined import without_lookup


class Recorder:
    """Verifies everything that is drafted and keeps what the drafter said of it."""

    name = "full"
    needs_confidence = True

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self.text, self.tag, self.position = -1, "", 0

    def begin(self, tag: str) -> None:
        """A new answer starts."""
        self.text, self.tag, self.position = self.text + 1, tag, 0

    def draft_limit(self, state: RoundState) -> int:
        """Every slot."""
        return state.max_depth

    def choose(self, state: RoundState) -> Decision:
        """Full depth, so that no acceptance is hidden by a cut."""
        return Decision(state.max_depth, "recording")

    def observe(self, outcome: RoundOutcome) -> None:
        """Write the round down."""
        if outcome.drafted:
            self.writer.add(
                TraceRound(
                    confidence=tuple(outcome.confidence)[: outcome.drafted],
                    depth=outcome.depth,
                    accepted=outcome.accepted,
                    text=self.text,
                    tag=self.tag,
                    position=self.position,
                    context=outcome.context,
                    temperature=outcome.temperature,
                    draft_ms=outcome.draft_ms,
                    verify_ms=outcome.verify_ms,
                    other_ms=outcome.other_ms,
                )
            )
        self.position += outcome.committed


def record(engine: Engine, prompts: Sequence[Prompt], settings: Settings, path: Path, header: dict[str, Any]) -> int:
    """Answer the prompts once more at full depth and write their rounds to ``path``; returns how many answers.

    Interrupting keeps the rounds made so far. Raises `WriteError` when the file cannot be written.
    """
    if engine.drafter is None:
        raise RequestError(f"A trace needs a drafter: {engine.drafter_reason or 'none is loaded'}.", param="trace")
    done = 0
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            recorder = Recorder(TraceWriter(stream, header))
            # Confidences of a lookup beside it are not comparable, so the model drafter drafts alone.
            drafter = without_lookup(engine.drafter)
            own = Engine(engine.target, drafter, policy_factory=lambda _: recorder)
            arm = EngineArm(own, "trace", depth="full")
            try:
                for prompt in prompts:
                    recorder.begin(prompt.category)
                    arm.run(prompt, settings)
                    done += 1
            except KeyboardInterrupt:
                pass
        os.replace(name, path)
    except OSError as error:
        raise WriteError(f"The trace {path} could not be written: {error.strerror or error}.") from error
    finally:
        if name:
            Path(name).unlink(missing_ok=True)
    return done
