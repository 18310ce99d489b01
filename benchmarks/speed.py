"""Speed against stock mlx-lm on the same prompts, interleaved in one run: the numbers behind the README's table.

    python benchmarks/speed.py                               # measure, print the table, keep the result
    python benchmarks/speed.py --peer 4,8                    # with the DFlash authors' engine and our drafter in it
    python benchmarks/speed.py --show benchmarks/results/X.json
    python benchmarks/speed.py --check benchmarks/results/X.json

Prompts, order, intervals and the result's format are those of ``macspec bench``, so ``macspec bench show``, ``plot``
and ``compare`` read what is kept here. Ratios are per prompt and over mlx-lm; the summary is their geometric mean.
``--peer`` needs ``pip install --no-deps dflash==0.1.0``. ``--check`` measures again what a kept result says, and exits
with 1 when a ratio over all prompts left its interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx
import mlx_lm

from macspec.bench import analysis, export, presets, runner
from macspec.bench.analysis import ALL, Row
from macspec.bench.arms import EngineArm, MlxLmArm
from macspec.bench.document import Report, dumps, read, with_id
from macspec.bench.progress import Progress
from macspec.bench.samples import Arm, Prompt, Sample, Settings
from macspec.bench.session import Plan, measure
from macspec.engine.loop import Engine
from macspec.errors import MacspecError
from macspec.runtime import Runtime
from macspec_models.drafters.combined import CombinedDrafter
from macspec_models.embedded import drafter_folder, target_folder

STOCK = "mlx_lm"
RESULTS = Path(__file__).resolve().parent / "results"


class PeerArm:
    """The DFlash authors' MLX engine at a fixed block size, with its own copy of the target and our drafter's files."""

    def __init__(self, engine: Engine, peer: Any, loaded: tuple[Any, Any, Any], block: int) -> None:
        self.name, self._engine, self._peer, self._block = f"dflash block {block}", engine, peer, block
        self._model, self._draft, self._tokenizer = loaded

    @classmethod
    def load(cls, engine: Engine, drafter: Path, blocks: Sequence[int]) -> list[Arm]:
        """One arm for each block size; all share one copy of the models."""
        try:
            import dflash.model_mlx as peer
        except ModuleNotFoundError as error:
            raise MacspecError("--peer needs: pip install --no-deps dflash==0.1.0") from error

        # It takes hub ids only; a folder stands for itself.
        peer.snapshot_download = lambda folder, **options: folder
        model, tokenizer = mlx_lm.load(str(target_folder()))
        loaded = (model, peer.load_draft(str(drafter)), tokenizer)
        return [cls(engine, peer, loaded, block) for block in blocks]

    def run(self, prompt: Prompt, settings: Settings) -> Sample:
        """Answer a prompt; tokens that come together count as one round, as in our own arms."""
        ids = self._engine.tokenize(EngineArm(self._engine, self.name, depth="0").request(prompt, settings))
        mx.reset_peak_memory()
        tokens: list[int] = []
        text: list[str] = []
        first_commit, first_round = 0.0, 0
        begun = time.perf_counter()
        for response in self._peer.stream_generate(
            self._model,
            self._draft,
            self._tokenizer,
            mx.array(ids),
            block_size=self._block,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
        ):
            tokens += response.tokens
            text.append(response.text)
            if not first_round:
                first_commit, first_round = time.perf_counter() - begun, len(tokens)
        ended = time.perf_counter() - begun
        return Sample(
            arm=self.name,
            prompt=prompt.id,
            category=prompt.category,
            prompt_tokens=len(ids),
            generation_tokens=len(tokens),
            first_round_tokens=first_round,
            first_commit_s=first_commit,
            end_s=ended,
            tokens=tuple(tokens),
            text="".join(text),
            finish_reason="length" if len(tokens) >= settings.max_tokens else "stop",
            peak_memory=mx.get_peak_memory(),
        )

    def gap(self, prompt: Prompt, prefix: tuple[int, ...], first: int, second: int) -> float | None:
        """As our engine sees it: the weights are the same."""
        return EngineArm(self._engine, self.name, depth="0").gap(prompt, prefix, first, second)


def make_arms(engine: Engine, depths: Sequence[str], blocks: Sequence[int], drafter: Path) -> list[Arm]:
    """Stock mlx-lm, plain decoding, our depths and the peer's blocks."""
    deepest = engine.drafter.max_depth if engine.drafter is not None else 0
    ours = {"plain": "0"}
    for depth in depths:
        if depth != "0":
            number = str(deepest) if depth == "full" else depth
            full = " (full)" if number == str(deepest) else ""
            ours[depth if depth == "auto" else f"depth {number}{full}"] = depth
    arms: list[Arm] = [MlxLmArm(engine, STOCK)]
    arms += [EngineArm(engine, name, depth=depth) for name, depth in ours.items()]
    if blocks:
        if isinstance(engine.drafter, CombinedDrafter):
            # What the peer has: the drafter without prompt lookup beside it.
            alone = Engine(engine.target, engine.drafter.model)
            arms.append(EngineArm(alone, "full, no lookup", depth="full"))
        arms += PeerArm.load(engine, drafter, blocks)
    return arms


def ratios(report: Report) -> tuple[Row, ...]:
    """The rows of a report with stock mlx-lm as the base of every ratio."""
    prompts = list({s.prompt: Prompt(s.prompt, s.category, "") for s in report.samples}.values())
    return analysis.analyse(report.samples, prompts, report.arms, baseline=STOCK).rows


def table(report: Report) -> str:
    """The README's table: ratios to mlx-lm by category and over all prompts, with what they rest on."""
    rows = {(row.arm, row.category): row for row in ratios(report)}
    stock = rows[STOCK, ALL]
    lines = [
        "| × mlx-lm | " + " | ".join(report.categories) + " | all | 95 % | tokens a round | identical |",
        "|---" * (len(report.categories) + 5) + "|",
    ]
    for arm in report.arms:
        row = rows[arm, ALL]
        if arm == STOCK or row.ratio_to_plain is None:
            continue
        cells = [rows[arm, category].ratio_to_plain for category in report.categories]
        shown = ["–" if value is None else f"{value:.2f}" for value in cells]
        interval = "–" if row.ratio_low is None else f"{row.ratio_low:.2f}–{row.ratio_high:.2f}"
        length = "–" if row.acceptance_length is None else f"{row.acceptance_length:.2f}"
        same = f"{row.identical_prompts}/{row.compared_prompts}"
        lines.append(f"| {' | '.join([arm, *shown, f'{row.ratio_to_plain:.2f}', interval, length, same])} |")
    facts = [
        report.machine.title,
        f"{report.pair.get('model')} {report.pair.get('dtype')}",
        f"{stock.prompts} prompts, {report.settings.max_tokens} tokens, greedy",
        f"mlx-lm {stock.tok_per_s:.1f} tok/s" if stock.tok_per_s else "mlx-lm not timed",
        ", ".join(f"{name} {report.versions[name]}" for name in ("mlx", "mlx-lm", "dflash") if name in report.versions),
        report.started,
        f"run {report.id}",
    ]
    return "\n".join([*lines, "", "; ".join(facts) + "."]) + "\n"


def outside(kept: Report, again: Report) -> list[str]:
    """One line for each arm whose ratio over all prompts is not in the kept interval."""
    now = {row.arm: row.ratio_to_plain for row in ratios(again) if row.category == ALL}
    found = []
    for row in ratios(kept):
        value = now.get(row.arm)
        if row.category != ALL or row.ratio_low is None or row.ratio_high is None or value is None:
            continue
        inside = row.ratio_low <= value <= row.ratio_high
        print(
            f"{row.arm:<16} {value:.3f}, kept {row.ratio_low:.3f}–{row.ratio_high:.3f}{'' if inside else '  outside'}"
        )
        if not inside:
            found.append(row.arm)
    return found


def name_of(report: Report) -> str:
    """File name of a result: the chip, the model and the drafter."""
    pair = report.pair
    words = (report.machine.chip or report.machine.architecture, pair.get("model"), pair.get("dtype"))
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(map(str, words)).lower()).strip("-") + ".json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="all", help="suites of macspec bench, with commas")
    parser.add_argument("--prompts", type=int, default=2, help="per category")
    parser.add_argument("--tokens", type=int, default=28)
    parser.add_argument("--depths", default="0,2,full,auto")
    parser.add_argument("--drafter", help="folder of another drafter")
    parser.add_argument("--peer", default="", help="block sizes of the authors' engine, such as 4,8")
    parser.add_argument("--out", type=Path, help="where to keep the result (default: benchmarks/results)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--show", type=Path, metavar="FILE", help="print the table of a kept result")
    action.add_argument("--check", type=Path, metavar="FILE", help="measure a kept result again")
    options = parser.parse_args()
    try:
        return _run(options)
    except MacspecError as error:
        print(f"speed.py: {error.message}", file=sys.stderr)
        return error.exit_code


def _run(options: argparse.Namespace) -> int:
    if options.show:
        print(table(read(options.show)), end="")
        return 0
    kept = read(options.check) if options.check else None
    suites = presets.load_all(options.suite.split(","))
    prompts = runner.interleave_categories([p for suite in suites for p in suite.prompts], options.prompts)
    engine = Runtime.load(None, options.drafter)
    blocks = [int(block) for block in options.peer.split(",") if block]
    drafter = Path(options.drafter) if options.drafter else drafter_folder()
    arms = make_arms(engine, options.depths.split(","), blocks, drafter)
    plan = Plan(prompts, Settings(max_tokens=options.tokens), suites)
    progress = Progress()
    report, interrupted = measure(engine, arms, plan, progress=progress)
    progress.clear()
    if blocks:
        report = with_id(dataclasses.replace(report, versions={**report.versions, "dflash": version("dflash")}))
    print(table(report), end="")
    if interrupted:
        print(f"Interrupted; kept in {export.keep(report)}.", file=sys.stderr)
        return 130
    if kept is not None:
        return 1 if outside(kept, report) else 0
    path = options.out or RESULTS / name_of(report)
    export.write(path, dumps(report))
    print(f"kept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
