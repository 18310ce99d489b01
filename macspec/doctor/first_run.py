"""``macspec doctor --first-run``: everything worth knowing of a machine nobody has seen, in one file to send.

It does what the ordinary findings only speak of: loads the pair, proves and races every kernel on this device, measures
what verification costs, and compares plain, full and adaptive decoding with stock mlx-lm on a few prompts, with the
machine's state before and after. A step that fails is part of the result, not the end of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from macspec.bench.export import write
from macspec.errors import MacspecError
from macspec_models.errors import ModelError

if TYPE_CHECKING:
    from macspec.runtime import Runtime

FORMAT = "macspec-first-run/1"
SUITES, PROMPTS_EACH, TOKENS = ("chat", "code", "rewrite"), 1, 48

Say = Callable[[str], None]


def default_file() -> Path:
    """Where the result is kept."""
    return Path(platformdirs.user_state_dir("macspec")) / "first-run.json"


def first_run(pair: dict[str, Any], findings: Callable[[], dict[str, Any]], say: Say, file: Path) -> dict[str, Any]:
    """Take every step, tell what each found, and keep the whole in ``file``.

    Args:
        pair: options of `Runtime.load`.
        findings: doctor's own result; asked last, when verdicts on kernels and a ladder are there to be found.
        say: gets text for the person.

    Returns:
        What ``file`` holds: ``load``, ``profile``, ``bench`` and ``doctor``, and ``failures`` by step.
    """
    steps = _Steps(pair, say)
    result: dict[str, Any] = {"format": FORMAT, "failures": {}}
    try:
        for name, step in (("load", steps.load), ("profile", steps.profile), ("bench", steps.bench)):
            try:
                result[name] = step()
            # RuntimeError is how MLX reports a device that failed.
            except (MacspecError, ModelError, RuntimeError) as error:
                result["failures"][name] = str(error)
                print(f"macspec: {name}: {error}", file=sys.stderr)
                if name == "load":
                    break
    finally:
        steps.close()
    result["doctor"] = findings()
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, json.dumps(result, ensure_ascii=False, indent=1) + "\n")
    say(f"Kept in {file}; send it along when you report how macspec does on your machine.")
    return result


class _Steps:
    """The steps in the order they need each other."""

    def __init__(self, pair: dict[str, Any], say: Say) -> None:
        self._pair, self._say = pair, say
        self._engine: Runtime | None = None

    def load(self) -> dict[str, Any]:
        """Load the pair; kernels are compiled, proven against the stock ones and raced meanwhile."""
        from macspec.progress import load_progress
        from macspec.runtime import Runtime

        said: list[str] = []
        with load_progress() as progress:
            self._engine = Runtime.load(**self._pair, progress=progress, profile=False, say=said.append)
        self._say("\n".join([f"Loaded {self._engine.target.name}; kernels: {self._engine.kernels}.", *said]))
        return {**self._engine.info(), "kernels": self._engine.kernels, "said": said}

    def profile(self) -> dict[str, Any] | None:
        """Measure verification anew; None without a drafter."""
        from macspec.profiling.command import chart

        assert self._engine is not None
        if self._engine.drafter is None:
            return None
        found = self._engine.maker.prepare(again=True)
        self._say("\n".join(["", *chart(found), ""]))
        return found.to_json()

    def bench(self) -> dict[str, Any]:
        """Compare with stock mlx-lm."""
        from macspec.bench import presets, report, runner
        from macspec.bench.arms import EngineArm, MlxLmArm
        from macspec.bench.progress import Progress
        from macspec.bench.samples import Arm, Settings
        from macspec.bench.session import Plan, measure

        engine = self._engine
        assert engine is not None
        suites = [presets.load(name) for name in SUITES]
        prompts = runner.interleave_categories([p for suite in suites for p in suite.prompts], PROMPTS_EACH)
        arms: list[Arm] = [EngineArm(engine, "plain", depth="0"), MlxLmArm(engine)]
        if engine.drafter is not None:
            arms += [EngineArm(engine, name, depth=name) for name in ("full", "auto")]
        progress = Progress()
        try:
            found, interrupted = measure(
                engine, arms, Plan(prompts, Settings(max_tokens=TOKENS), suites), progress=progress
            )
        finally:
            progress.clear()
        if interrupted:
            raise KeyboardInterrupt
        self._say(report.table(found))
        return found.to_wire()

    def close(self) -> None:
        """Give back what was loaded."""
        if self._engine is not None:
            self._engine.close()
