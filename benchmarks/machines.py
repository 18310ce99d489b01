"""The scheduler's choice against plain decoding and every fixed depth, on machines whose cost curves differ.

    python -m benchmarks.machines [--machine openblas --machine m4pro-qwen3-4b-8bit …] [--json FILE]

Three machines are real, all made of this one: float32 with OpenBLAS (a curve shaped like a Mac's), float32 with the
reference BLAS (linear: plain decoding must win) and bfloat16 (steep). The others are *emulated*: the name of a
published ladder in ``benchmarks/ladders``, every pass of the real pair padded by sleeping to that ladder's shape,
scaled so that the real pass fits; drafts too, where the real one is not dearer. Drafts and acceptance are real.

A run starts with no profile and nothing learned. The scheduler first answers calibration prompts until it has generated
``--cold`` tokens; a copy of it as it is then is the arm ``young``. It goes on with the other calibration prompts and
becomes the arm ``auto``. Then every held-out prompt is answered by every arm in turn, the order reversed every other
time. Ratios are of decode rates, per prompt, with 95 % intervals as `macspec bench` makes them.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import macspec.engine.loop
from benchmarks.held_out import held_out_prompts
from macspec.bench.stats import Estimate, paired_ratio
from macspec.engine.rounds import Rounds
from macspec.profiling.store import ProfileStore
from macspec.request import GenerationRequest, Round, SamplingParams
from macspec.runtime import Runtime
from macspec.scheduler.cost import CostModel
from macspec.scheduler.interface import DepthPolicy
from macspec.scheduler.ladder import Ladder
from macspec.scheduler.policies import make_policy

LADDERS = Path(__file__).parent / "ladders"
#: Environment and loading options of the real machines.
REAL: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "openblas": ({}, {}),
    "reference": ({"MACSPEC_BLAS": "reference"}, {}),
    "bfloat16": ({}, {"dtype": "bfloat16"}),
}
EMULATED = ("m4pro-qwen3-4b-8bit", "m4max-qwen3.8-27b-4bit", "m5max-70b-4bit", "m1ultra-linear")
CATEGORIES = ("chat", "code", "rewrite")
#: Room left between a real pass and the emulated one, so that the machine's own noise is slept away.
HEADROOM = 1.15


def prompts(engine: Runtime, per_category: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Calibration prompts and those to measure on, ``(category, text)``; the drafter was trained on neither."""
    both = held_out_prompts(engine.target.tokenizer, CATEGORIES, 2 * per_category)
    measured, calibration = both[::2], both[1::2]
    order = random.Random(3)
    order.shuffle(calibration)
    order.shuffle(measured)
    return calibration, measured


def emulate(ladder: Ladder) -> type[Rounds]:
    """Rounds whose drafts and passes take what ``ladder`` says, by sleeping."""

    class Padded(Rounds):
        #: When the draft in work is due; lookups cost nothing and are not padded.
        _due = 0.0

        def _verify(self, draft: list[int]) -> Any:
            begin, context = time.perf_counter(), self.session.cache.length
            result = super()._verify(draft)
            _sleep_until(begin + 1e-3 * ladder.curve(context)[len(draft)])
            return result

        def _draft(self) -> Any:
            self._due = time.perf_counter() + 1e-3 * ladder.draft_ms(self.session.cache.length)
            return super()._draft()

        def _read_draft(self) -> Any:
            begin, before = time.perf_counter(), self._draft_seconds
            drafted = super()._read_draft()
            _sleep_until(self._due)
            self._draft_seconds = before + time.perf_counter() - begin
            return drafted

    return Padded


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.perf_counter()))


def answer(engine: Runtime, policy: DepthPolicy, text: str, tokens: int) -> tuple[int, float, float, float]:
    """Tokens, decode seconds per token, tokens per round and mean depth of one answer under one rule."""
    request = GenerationRequest(
        messages=({"role": "user", "content": text},),
        use_cache=False,
        sampling=SamplingParams(max_tokens=tokens, ignore_eos=True),
    )
    engine._policies[request.policy] = policy
    times, counts, depths = [], [], []
    for event in engine.generate(request):
        if isinstance(event, Round):
            times.append(time.perf_counter())
            counts.append(event.committed)
            depths.append(event.verified)
    total = sum(counts)
    return total, (times[-1] - times[0]) / (total - counts[0]), total / len(counts), sum(depths) / len(depths)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run every arm on one machine, in this process."""
    real = REAL.get(name)
    engine = Runtime.load(profile=False, prefix_cache_bytes=0, **(real[1] if real else {}))
    engine.maker.store = ProfileStore(Path(tempfile.mkdtemp()))
    begin = time.perf_counter()
    ladder = engine.maker.prepare().ladder
    profiled = time.perf_counter() - begin
    scale = 0.0
    if real is None:
        published = Ladder.read(LADDERS / f"{name}.json")
        rows = min(published.max_rows, ladder.max_rows)
        own, theirs = ladder.curve(128)[:rows], published.curve(0)[:rows]
        scale = HEADROOM * max(mine / other for mine, other in zip(own, theirs, strict=True))
        draft = max(scale * published.draft_ms(0), HEADROOM * ladder.draft_ms(128))
        ladder = Ladder.single([scale * ms for ms in theirs], draft)
        macspec.engine.loop.Rounds = emulate(ladder)  # type: ignore[misc]
    depths = [d for d in options.depths if d < ladder.max_rows]
    calibration, held_out = prompts(engine, options.prompts)

    def rule() -> DepthPolicy:
        return make_policy("rate", CostModel(ladder))

    auto, young, spent = rule(), None, 0
    for _, text in calibration:
        wanted = options.tokens if young is not None else min(options.tokens, options.cold - spent)
        spent += answer(engine, auto, text, wanted)[0]
        if young is None and spent >= options.cold:
            young = copy.deepcopy(auto)
    if young is None:
        raise SystemExit(f"The calibration prompts gave {spent} of {options.cold} tokens; raise --prompts or --tokens.")

    arms: dict[str, Callable[[], DepthPolicy]] = {
        "plain": lambda: make_policy("plain"),
        **{f"fixed:{d}": (lambda d=d: make_policy(f"fixed:{d}")) for d in depths},  # type: ignore[misc]
        "auto": lambda: auto,
        "young": lambda: copy.deepcopy(young),
    }
    rows = []
    for number, (category, text) in enumerate(held_out):
        for arm in list(arms) if number % 2 == 0 else reversed(list(arms)):
            _, seconds, tau, depth = answer(engine, arms[arm](), text, options.tokens)
            rows.append(
                {"arm": arm, "category": category, "prompt": number, "s": seconds, "tau": tau, "depth": round(depth, 2)}
            )
        print(f"{name}: {number + 1}/{len(held_out)} {category}", file=sys.stderr, flush=True)
    engine.close()
    return {
        "machine": name,
        "emulated": real is None,
        "scale": scale,
        "profile_seconds": profiled,
        "ladder_ms": [round(ms, 2) for ms in ladder.curve(128)],
        "draft_ms": round(ladder.draft_ms(128), 2),
        "rows": rows,
    }


def ratio(rows: list[dict[str, Any]], arm: str, base: str, category: str | None = None) -> Estimate:
    """``arm``'s decode rate over ``base``'s, paired by prompt."""
    rate = {(r["arm"], r["prompt"]): 1.0 / r["s"] for r in rows if category in (None, r["category"])}
    met = [prompt for name, prompt in rate if name == arm]
    return paired_ratio([[rate[base, prompt]] for prompt in met], [[rate[arm, prompt]] for prompt in met])


def report(result: dict[str, Any]) -> None:
    """Print one machine's table and the verdicts."""
    rows = result["rows"]
    arms = list(dict.fromkeys(r["arm"] for r in rows))
    others = [arm for arm in arms if arm not in ("auto", "young")]
    kind = f"emulated, x {result['scale']:.2f}" if result["emulated"] else "real"
    print(f"\n{result['machine']} ({kind}); profile {result['profile_seconds']:.1f} s")
    print(f"  rows 1..: {result['ladder_ms']} ms, draft {result['draft_ms']} ms")
    print(f"  {'arm':9}" + "".join(f"{c:>9}" for c in (*CATEGORIES, "all")) + f"{'tau':>7}{'depth':>7}")
    for arm in arms:
        cells = [ratio(rows, arm, "plain", c).value for c in (*CATEGORIES, None)]
        mine = [r for r in rows if r["arm"] == arm]
        tau, depth = fmean(r["tau"] for r in mine), fmean(r["depth"] for r in mine)
        print(f"  {arm:9}" + "".join(f"{x:9.3f}" for x in cells) + f"{tau:7.2f}{depth:7.2f}")
    for category in (*CATEGORIES, None):
        best = max(others, key=lambda arm: ratio(rows, arm, "plain", category).value)
        print(f"  auto / best of {category or 'all'} ({best}): {_shown(ratio(rows, 'auto', best, category))}")
    print(f"  auto / plain: {_shown(ratio(rows, 'auto', 'plain'))}")
    print(f"  young / auto: {_shown(ratio(rows, 'young', 'auto'))}", flush=True)


def _shown(estimate: Estimate) -> str:
    ends = "" if estimate.interval is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.value:.3f}{ends}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", action="append", choices=[*REAL, *sorted(p.stem for p in LADDERS.glob("*.json"))])
    parser.add_argument("--prompts", type=int, default=4, help="held-out prompts per category")
    parser.add_argument("--tokens", type=int, default=48, help="per answer")
    parser.add_argument("--cold", type=int, default=200, help="tokens after which a cold scheduler is compared")
    parser.add_argument("--depths", type=lambda text: [int(d) for d in text.split(",")], default=[1, 2, 3, 5, 7])
    parser.add_argument("--json", type=Path, help="file, or with several machines a folder")
    parser.add_argument("--here", action="store_true", help="measure in this process and print JSON; used by itself")
    options = parser.parse_args()
    names = options.machine or [*REAL, *EMULATED]
    if options.here:
        print(json.dumps(measure(names[0], options)))
        return
    own = [f"--{key}={getattr(options, key)}" for key in ("prompts", "tokens", "cold")]
    own.append("--depths=" + ",".join(map(str, options.depths)))
    for name in names:
        command = [sys.executable, "-m", "benchmarks.machines", "--here", "--machine", name, *own]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **REAL.get(name, ({}, {}))[0]}
        )
        result = {**json.loads(done.stdout), "host": platform.platform(), "cores": os.cpu_count()}
        report(result)
        if options.json:
            file = options.json if len(names) == 1 else options.json / f"{name}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
