"""Peak memory of the embedded pair: a long generation, and a long prompt against its forecast.

python benchmarks/memory.py [--tokens 2000] [--prompt 8000]
"""

from __future__ import annotations

import argparse

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx

from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, Round, SamplingParams

MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--prompt", type=int, default=8000)
    options = parser.parse_args()
    engine = Engine.load()
    drafter = getattr(engine.drafter, "nbytes", 0)
    weights = engine.target.nbytes + drafter
    print(f"weights {weights / MB:.0f} MB (drafter {drafter / MB:.0f} MB)")

    mx.reset_peak_memory()
    sampling = SamplingParams(max_tokens=options.tokens, ignore_eos=True, temperature=0.8, seed=1)
    request = GenerationRequest(tokens=(1, 2, 3, 4), depth="3", sampling=sampling, use_cache=False)
    begin, count, marks = mx.get_active_memory(), 0, []
    for event in engine.generate(request):
        if isinstance(event, Round):
            count += event.committed
            if count >= (len(marks) + 1) * options.tokens // 4:
                marks.append((count, mx.get_active_memory() / MB))
    caches = engine.guard.forecast(options.tokens).cache
    peak = mx.get_peak_memory()
    print(f"{count} tokens: active at quarters {[f'{n}: {m:.0f} MB' for n, m in marks]}, at rest {begin / MB:.0f} MB")
    print(f"peak {peak / MB:.0f} MB = {peak / (weights + caches):.2f} x (weights + caches of {caches / MB:.0f} MB)")

    engine.prefixes.clear()
    mx.clear_cache()
    mx.reset_peak_memory()
    forecast = engine.guard.forecast(options.prompt + 8)
    tokens = tuple((17 * i + 11) % engine.target.vocab_size for i in range(options.prompt))
    request = GenerationRequest(tokens=tokens, depth="1", sampling=SamplingParams(max_tokens=8), use_cache=False)
    for _ in engine.generate(request):
        pass
    peak = mx.get_peak_memory()
    print(f"prompt of {options.prompt}: peak {peak / MB:.0f} MB, forecast {forecast.total / MB:.0f} MB, "
          f"ratio {peak / forecast.total:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
