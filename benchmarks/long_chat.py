"""A long chat with the embedded model: each turn reads only what is new, and the text is that of a run without reuse.

    python benchmarks/long_chat.py [--turns 30] [--tokens 24]

Prints per turn the prompt's length, how much of it was reused, the seconds to the first token, and whether the answer
equals the one without reuse (checked every ``--check`` turns, since that reads the whole history again).
"""

from __future__ import annotations

import argparse
import time

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import Event, GenerationRequest, SamplingParams, Text

QUESTIONS = (
    "Tell me one fact about the sea.",
    "Why is that?",
    "Say it in simpler words.",
    "Give an example.",
    "What would a child ask about it?",
    "Now one fact about mountains, please.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--check", type=int, default=5)
    options = parser.parse_args()
    engine = Engine.load()
    messages: list[dict[str, str]] = []
    firsts, extra = [], 0
    for turn in range(options.turns):
        messages.append({"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]})
        sampling = SamplingParams(max_tokens=options.tokens)
        request = GenerationRequest(messages=tuple(messages), depth="3", sampling=sampling)
        begin, first = time.perf_counter(), 0.0
        events: list[Event] = []
        for event in engine.generate(request):
            if isinstance(event, Text) and not first:
                first = time.perf_counter() - begin
            events.append(event)
        answer = collect(iter(events))[0]
        firsts.append(first)
        stats = answer.stats
        note = ""
        if turn % options.check == options.check - 1:
            fresh = GenerationRequest(messages=tuple(messages), depth="3", sampling=sampling, use_cache=False)
            other = collect(engine.generate(fresh))[0]
            note = "  equal to a fresh run" if other.tokens == answer.tokens else "  DIFFERS from a fresh run"
        new = stats.prompt_tokens - stats.cached_tokens
        extra = max(extra, new)
        print(
            f"turn {turn + 1:2}: prompt {stats.prompt_tokens:5}, new {new:3}, first token {first:.2f} s{note}",
            flush=True,
        )
        messages.append({"role": "assistant", "content": answer.text})
    early, late = sum(firsts[2:7]) / 5, sum(firsts[-5:]) / 5
    print(f"most new tokens in a turn {extra}; first token, turns 3-7: {early:.2f} s, last 5: {late:.2f} s")


if __name__ == "__main__":
    main()
