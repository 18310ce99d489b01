"""Speed against stock mlx-lm on the same prompts, interleaved in one run; the numbers behind the README's table.

    python benchmarks/speed.py [--prompts 3] [--tokens 128] [--depths 0,1,3,7] [--auto] [--peer 2,4,8] [--json FILE]

Every prompt is answered by every arm in turn, the order reversed every other time, so that a drift of the machine's
speed touches all arms alike. Ratios are per prompt; the summary is their geometric mean. ``--peer`` adds the DFlash
authors' own engine (``pip install --no-deps dflash==0.1.0``) at fixed block sizes, loading the same drafter unchanged.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx
import mlx_lm

from macspec.engine.loop import Engine
from macspec.request import Finished, GenerationRequest, SamplingParams, Text
from macspec.runtime import Runtime
from macspec_models.embedded import drafter_folder
from macspec_models.training.responses import load_examples, load_prompts

CATEGORIES = ("chat", "explain", "code", "rewrite", "edit", "write")


def held_out_prompts(engine: Engine, per_category: int) -> list[tuple[str, str]]:
    """Prompts whose answers were never trained on: the recipe's held-out ones, then ones it never answered."""
    prompts = load_prompts()
    trained = {example.line for example in load_examples(engine.target.tokenizer) if not example.held_out}
    chosen = []
    for category in CATEGORIES:
        rows = [p.text for i, p in enumerate(prompts) if p.category == category and i not in trained]
        step = max(1, len(rows) // per_category)
        chosen += [(category, text) for text in rows[::step][:per_category]]
    return chosen


def stock(engine: Engine, tokens: list[int], limit: int) -> tuple[list[int], float]:
    """Tokens and decode rate of mlx-lm's own generator on the same model object and prompt."""
    got, first, last = [], 0.0, 0.0
    with engine.target.bare():
        for response in mlx_lm.stream_generate(engine.target.model, engine.target.tokenizer, tokens, max_tokens=limit):
            last = time.perf_counter()
            if not got:
                first = last
            got.append(response.token)
    return got, (len(got) - 1) / (last - first) if len(got) > 1 else 0.0


class Peer:
    """The DFlash authors' MLX engine with its own copy of the target; it only knows hub ids, so a folder is passed."""

    def __init__(self, drafter: Path) -> None:
        import dflash.model_mlx as peer

        from macspec_models.embedded import target_folder

        peer.snapshot_download = lambda folder, **options: folder
        self._engine, self._draft = peer, peer.load_draft(str(drafter))
        self._model, self._tokenizer = mlx_lm.load(str(target_folder()))

    def __call__(self, tokens: list[int], limit: int, block: int) -> tuple[list[int], float]:
        got: list[int] = []
        first_count, first, last = 0, 0.0, 0.0
        for response in self._engine.stream_generate(
            self._model, self._draft, self._tokenizer, mx.array(tokens), block_size=block, max_tokens=limit
        ):
            last = time.perf_counter()
            got += response.tokens
            if not first:
                first, first_count = last, len(got)
        return got, (len(got) - first_count) / (last - first) if last > first else 0.0


def ours(engine: Engine, tokens: list[int], limit: int, depth: str) -> tuple[list[int], Finished]:
    """Tokens and totals of one of our arms; no prefix is reused."""
    got: list[int] = []
    request = GenerationRequest(
        tokens=tuple(tokens), depth=depth, use_cache=False, sampling=SamplingParams(max_tokens=limit)
    )
    for event in engine.generate(request):
        if isinstance(event, Text):
            got += [token.id for token in event.tokens]
        if isinstance(event, Finished):
            end = event
    return got, end


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Where two answers part, or None."""
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def gap(engine: Engine, tokens: list[int]) -> float:
    """Top-1/top-2 logit gap after ``tokens``."""
    logits = engine.target.forward(mx.array([tokens]), engine.target.make_cache())[0, -1]
    top = mx.sort(logits)[-2:].tolist()
    return top[1] - top[0]


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=3, help="per category")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--depths", default="0,1,2,3,4,7")
    parser.add_argument("--drafter", help="folder of another drafter")
    parser.add_argument("--auto", action="store_true", help="add the scheduler's own choice")
    parser.add_argument("--peer", help="block sizes of the authors' engine, such as 2,4,8")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = Runtime.load(None, options.drafter, profile=options.auto)
    depths = options.depths.split(",") + (["auto"] if options.auto else [])
    peer = None
    if options.peer:
        peer = Peer(Path(options.drafter) if options.drafter else drafter_folder())
        depths += [f"peer:{block}" for block in options.peer.split(",")]
    prompts = held_out_prompts(engine, options.prompts)
    rows, differences = [], []
    ours(engine, engine.target.tokenizer.encode("warm up"), 16, "3")
    for number, (category, text) in enumerate(prompts):
        request = GenerationRequest(messages=({"role": "user", "content": text},))
        tokens = engine.tokenize(request)
        arms = ["mlx-lm", *depths]
        results = {}
        for arm in arms if number % 2 == 0 else reversed(arms):
            if arm == "mlx-lm":
                got, rate = stock(engine, tokens, options.tokens)
                results[arm] = {"tok_per_s": rate, "tokens": got}
            elif peer is not None and arm.startswith("peer:"):
                got, rate = peer(tokens, options.tokens, int(arm.removeprefix("peer:")))
                results[arm] = {"tok_per_s": rate, "tokens": got}
            else:
                got, end = ours(engine, tokens, options.tokens, arm)
                s = end.stats
                busy = s.draft_ms + s.verify_ms + s.other_ms
                results[arm] = {
                    "tok_per_s": s.generation_tps,
                    "tokens": got,
                    "tau": s.acceptance_length,
                    "draft_ms": s.draft_ms / s.rounds,
                    "verify_ms": s.verify_ms / s.rounds,
                    "other_share": s.other_ms / busy,
                }
        base = results["mlx-lm"]
        for arm in arms:
            place = first_difference(results[arm]["tokens"], base["tokens"])
            if place is not None and place < min(len(base["tokens"]), len(results[arm]["tokens"])):
                near = gap(engine, tokens + base["tokens"][:place])
                differences.append((arm, number, place, near))
            same = {"arm": arm, "category": category, "prompt": number, "identical": place is None}
            rows.append({**same, **results[arm]})
        print(f"{number + 1}/{len(prompts)} {category}", flush=True)

    names = "".join(f"{category:>9}" for category in CATEGORIES)
    print(f"\n{'arm':8}{names}{'all':>9}{'tau':>7}{'draft':>8}{'verify':>8}{'other':>8}")
    rate = {(r["arm"], r["prompt"]): r["tok_per_s"] for r in rows}
    for arm in ["mlx-lm", *depths]:
        mine = [r for r in rows if r["arm"] == arm and rate["mlx-lm", r["prompt"]] > 0 and r["tok_per_s"] > 0]
        ratio = {r["prompt"]: r["tok_per_s"] / rate["mlx-lm", r["prompt"]] for r in mine}
        cells = []
        for category in CATEGORIES:
            values = [ratio[r["prompt"]] for r in mine if r["category"] == category]
            cells.append(f"{geometric_mean(values):9.2f}" if values else f"{'-':>9}")
        line = f"{arm:8}" + "".join(cells) + f"{geometric_mean(list(ratio.values())):9.3f}"
        if mine and "tau" in mine[0]:
            mean = {k: sum(r[k] for r in mine) / len(mine) for k in ("tau", "draft_ms", "verify_ms", "other_share")}
            line += f"{mean['tau']:7.2f}{mean['draft_ms']:8.1f}{mean['verify_ms']:8.1f}{mean['other_share']:8.1%}"
        print(line)
    same = {arm: sum(r["identical"] for r in rows if r["arm"] == arm) for arm in depths}
    print(f"identical to mlx-lm of {len(prompts)}: {same}; near-ties (arm, prompt, token, gap): {differences}")
    if options.json:
        machine = {"platform": platform.platform(), "mlx": mx.__version__, "mlx_lm": mlx_lm.__version__}
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
