"""Memory of the embedded pair: a long generation, a long prompt against its forecast, many prompts under a budget.

python benchmarks/memory.py [--tokens 2000] [--prompt 8000] [--prompts 200 --budget 200]

A part whose number is 0 is left out. Ends with status 1 when a long prompt's peak is more than 15 % off its forecast or
the prefix cache's budget was exceeded.
"""

from __future__ import annotations

import argparse
import sys

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx

from macspec.engine.loop import Engine
from macspec.request import GenerationRequest, PrefillProgress, Round, SamplingParams

MB = 1e6
#: Largest part by which a peak may be off its forecast.
TOLERANCE = 0.15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of the long generation")
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the long prompt")
    parser.add_argument("--prompts", type=int, default=200, help="how many prompts the prefix cache sees")
    parser.add_argument("--budget", type=int, default=200, help="its budget in MB")
    options = parser.parse_args()
    engine = Engine.load(prefix_cache_bytes=options.budget * 10**6)
    drafter = getattr(engine.drafter, "nbytes", 0)
    print(f"weights {(engine.target.nbytes + drafter) / MB:.0f} MB (drafter {drafter / MB:.0f} MB)")
    if options.tokens:
        generation(engine, options.tokens)
    fine = True
    if options.prompt:
        fine &= long_prompt(engine, options.prompt)
    if options.prompts:
        fine &= many_prompts(engine, options.prompts)
    return 0 if fine else 1


def generation(engine: Engine, tokens: int) -> None:
    """What a long answer holds at its quarters, and its peak against weights and caches."""
    settle(engine)
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.8, seed=1)
    request = GenerationRequest(tokens=(1, 2, 3, 4), depth="3", sampling=sampling, use_cache=False)
    begin, count, marks = mx.get_active_memory(), 0, []
    for event in engine.generate(request):
        if isinstance(event, Round):
            count += event.committed
            if count >= (len(marks) + 1) * tokens // 4:
                marks.append((count, mx.get_active_memory()))
    forecast = engine.guard.forecast(tokens)
    held = forecast.weights + forecast.drafter
    for done, active in marks:
        caches = engine.guard.forecast(done).cache
        print(
            f"{done:5} tokens: {(active - begin) / MB:6.0f} MB more than at rest, caches by forecast {caches / MB:.0f}"
        )
    peak = mx.get_peak_memory()
    ratio = peak / (held + forecast.cache)
    print(f"peak {peak / MB:.0f} MB = {ratio:.2f} x (weights + caches of {forecast.cache / MB:.0f} MB)")


def long_prompt(engine: Engine, length: int) -> bool:
    """The peak while a long prompt is read, against the forecast; whether it is within the tolerance."""
    settle(engine)
    forecast = engine.guard.forecast(length + 8)
    tokens = tuple((17 * i + 11) % engine.target.vocab_size for i in range(length))
    request = GenerationRequest(tokens=tokens, depth="1", sampling=SamplingParams(max_tokens=8), use_cache=False)
    for event in engine.generate(request):
        if isinstance(event, PrefillProgress) and event.done < event.total:
            print(f"\r{event.done} of {event.total}", end="", file=sys.stderr, flush=True)
    peak = mx.get_peak_memory()
    ratio = peak / forecast.total
    print(f"\rprompt of {length}: peak {peak / MB:.0f} MB, forecast {forecast.total / MB:.0f} MB, ratio {ratio:.2f}")
    return abs(ratio - 1) <= TOLERANCE


def many_prompts(engine: Engine, count: int) -> bool:
    """Different prompts, one after the other: what the prefix cache holds, and the peak of both halves."""
    settle(engine)
    prefixes, most, halves = engine.prefixes, 0, []
    for number in range(count):
        text = f"Question {number}: how much is {37 * number + 5} minus {number}?"
        request = GenerationRequest(
            messages=({"role": "user", "content": text},), depth="3", sampling=SamplingParams(max_tokens=2)
        )
        for _ in engine.generate(request):
            pass
        most = max(most, prefixes.nbytes)
        if number in (count // 2 - 1, count - 1):
            halves.append(mx.get_peak_memory())
            mx.reset_peak_memory()
    print(
        f"{count} prompts: {len(prefixes)} kept, at most {most / MB:.0f} MB of a budget of "
        f"{prefixes.budget_bytes / MB:.0f}; peak {' and '.join(f'{peak / MB:.0f}' for peak in halves)} MB by halves"
    )
    return most <= prefixes.budget_bytes


def settle(engine: Engine) -> None:
    """Forget earlier prompts and freed buffers."""
    engine.prefixes.clear()
    mx.clear_cache()
    mx.reset_peak_memory()


if __name__ == "__main__":
    sys.exit(main())
