"""Does speculation change a token? Held-out prompts, the embedded target, every drafter and depth, against depth 0.

    python benchmarks/equality.py [--prompts 20] [--tokens 32]

Greedy and T = 0.8 with three seeds; the embedded drafter, a random one, and an oracle that proposes the answer itself.
Greedy answers are compared with stock mlx-lm too; where they part, the logit gap there is printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx
import mlx_lm

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, SamplingParams

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from benchmarks.held_out import held_out_prompts
from fake_drafters import oracle_drafter, random_drafter

CATEGORIES = ("chat", "explain", "code", "rewrite", "edit", "write")


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Where two answers part, or None."""
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def gap(engine: Engine, tokens: list[int]) -> float:
    """Top-1/top-2 logit gap after ``tokens``."""
    logits = engine.target.forward(mx.array([tokens]), engine.target.make_cache())[0, -1]
    top = mx.sort(logits)[-2:].tolist()
    return float(top[1] - top[0])


def answer(engine: Engine, tokens: list[int], depth: str, limit: int, temperature: float, seed: int) -> list[int]:
    """Token ids of one answer; no prefix is reused."""
    sampling = SamplingParams(max_tokens=limit, temperature=temperature, seed=seed)
    request = GenerationRequest(tokens=tuple(tokens), depth=depth, use_cache=False, sampling=sampling)
    return collect(engine.generate(request))[0].tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--drafter")
    options = parser.parse_args()
    engine = Engine.load(None, options.drafter)
    target = engine.target
    prompts = held_out_prompts(target.tokenizer, CATEGORIES, -(-options.prompts // 6))[: options.prompts]
    runs = differing = 0
    ties = []
    for number, (category, text) in enumerate(prompts):
        tokens = engine.tokenize(GenerationRequest(messages=({"role": "user", "content": text},)))
        for temperature, seed in ((0.0, 0), (0.8, 1), (0.8, 2), (0.8, 3)):
            engine = Engine(target, engine.drafter)
            plain = answer(engine, tokens, "0", options.tokens, temperature, seed)
            trials = [(engine, depth, "embedded") for depth in ("1", "3", "full")]
            taps = engine.drafter.taps if engine.drafter else ()
            for name, drafter in (
                ("random", random_drafter(target.vocab_size, seed=number, taps=taps)),
                ("oracle", oracle_drafter(plain, len(tokens), taps=taps)),
            ):
                trials.append((Engine(target, drafter), "full", name))
            for other, depth, name in trials:
                got = answer(other, tokens, depth, options.tokens, temperature, seed)
                runs += 1
                place = first_difference(plain, got)
                if place is not None:
                    differing += 1
                    near = gap(engine, tokens + plain[:place])
                    ties.append((number, temperature, seed, name, depth, place, round(near, 5)))
            if temperature == 0:
                pieces = mlx_lm.stream_generate(target.model, target.tokenizer, tokens, max_tokens=options.tokens)
                stock = [piece.token for piece in pieces]
                place = first_difference(plain, stock)
                if place is not None:
                    ties.append((number, 0.0, 0, "mlx-lm", "-", place, round(gap(engine, tokens + plain[:place]), 5)))
        print(f"{number + 1}/{len(prompts)} {category}: {runs} runs, {differing} differ", flush=True)
    print(
        f"{runs} speculative runs over {len(prompts)} prompts on {mx.default_device()}: {differing} differ from depth 0"
    )
    for tie in ties:
        print("  (prompt, T, seed, drafter, depth, token, logit gap) =", tie)
    return 0


if __name__ == "__main__":
    sys.exit(main())
