"""A long chat with the embedded model: each turn reads only what is new, and the text is that of a run without reuse.

    python benchmarks/long_chat.py [--turns 30] [--tokens 24]

Prints per turn the prompt's length, how much of it is new, the milliseconds to the first token by part (making the
prompt and finding its prefix; reading what is new; the first round), and whether the answer equals the one without
reuse (checked every ``--check`` turns, since that reads the whole history again; 0 leaves it out). Both ends of the
chat are compared last. What has to grow with the history is attention over it, on a CPU mostly its softmax's
exponentials, so each turn also shows the time to the first token as a multiple of what the model alone takes for the
same rows after the same history: that multiple must not grow.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import macspec_models  # noqa: F401 (loads a fast BLAS, which must come before MLX)

# isort: split
import mlx.core as mx

from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import Event, GenerationRequest, PrefillProgress, Round, SamplingParams, Started, Text

QUESTIONS = (
    "Tell me one fact about the sea.",
    "Why is that?",
    "Say it in simpler words.",
    "Give an example.",
    "What would a child ask about it?",
    "Now one fact about mountains, please.",
)
#: What the time to the first token is made of.
PARTS = ("prompt", "read", "round")
#: Passes over the same rows whose median is the model's own time.
PASSES = 3
#: Turns at both ends that are compared; the first ones, which also warm up, are left out.
EARLY, LATE = slice(2, 7), slice(-5, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--check", type=int, default=5)
    options = parser.parse_args()
    engine = Engine.load()
    messages: list[dict[str, str]] = []
    times: list[tuple[float, ...]] = []
    lengths: list[int] = []
    multiples: list[float] = []
    most_new = differing = 0
    for turn in range(1, options.turns + 1):
        messages.append({"role": "user", "content": QUESTIONS[(turn - 1) % len(QUESTIONS)]})
        sampling = SamplingParams(max_tokens=options.tokens)
        request = GenerationRequest(messages=tuple(messages), depth="3", sampling=sampling)
        events, parts = timed(engine, request)
        answer = collect(iter(events))[0]
        note = ""
        if options.check and turn % options.check == 0:
            fresh = GenerationRequest(messages=tuple(messages), depth="3", sampling=sampling, use_cache=False)
            equal = collect(engine.generate(fresh))[0].tokens == answer.tokens
            differing += not equal
            note = "  equal to a fresh run" if equal else "  DIFFERS from a fresh run"
        new = answer.stats.prompt_tokens - answer.stats.cached_tokens
        most_new = max(most_new, new)
        times.append(parts)
        lengths.append(answer.stats.prompt_tokens)
        first = next(event for event in events if isinstance(event, Round))
        multiples.append(sum(parts) / bare(engine, request, answer.stats.cached_tokens, 1 + first.verified))
        line = (
            f"turn {turn:2}: {lengths[-1]:5} tokens, {new:3} new; {told(parts)}, {multiples[-1]:.2f} x the model's own"
        )
        print(line + note, flush=True)
        messages.append({"role": "assistant", "content": answer.text})
    print(f"most new tokens in a turn: {most_new}")
    for name, turns in (("early", EARLY), ("late", LATE)):
        medians = tuple(statistics.median(column) for column in zip(*times[turns], strict=True))
        own = statistics.median(multiples[turns])
        print(f"{name}, {statistics.mean(lengths[turns]):.0f} tokens: {told(medians)}, {own:.2f} x the model's own")
    return 1 if differing else 0


def timed(engine: Engine, request: GenerationRequest) -> tuple[list[Event], tuple[float, ...]]:
    """Events of an answer, and the seconds of every part up to its first token."""
    begin, started, read, first = time.perf_counter(), 0.0, 0.0, 0.0
    events: list[Event] = []
    for event in engine.generate(request):
        now = time.perf_counter()
        if isinstance(event, Started):
            started = read = now
        elif isinstance(event, PrefillProgress):
            read = now
        elif isinstance(event, Text) and not first:
            first = now
        events.append(event)
    return events, (started - begin, read - started, first - read)


def bare(engine: Engine, request: GenerationRequest, cached: int, verified: int) -> float:
    """Seconds the model alone takes for the rows up to a request's first token, after ``cached`` tokens.

    These are two passes, as the engine makes them: the new tokens but the last, then ``verified`` rows of a round. The
    history comes from the prefix cache, where the answer left it; a pass that is not counted unshares its memory.
    """
    prompt = engine.tokenize(request)
    cache = engine.prefixes.take(prompt[: cached + 1]).cache
    seconds = []
    with engine.target.bare():
        for _ in range(1 + PASSES):
            begin = time.perf_counter()
            for rows, scored in ((prompt[cached:-1], False), ([prompt[-1]] * verified, True)):
                if rows:
                    with cache.append(len(rows)):
                        logits = engine.target.forward(mx.array([rows]), cache.layers)
                    mx.eval(cache.arrays(), logits if scored else [])
            seconds.append(time.perf_counter() - begin)
            cache.trim(cached)
    return statistics.median(seconds[1:])


def told(parts: tuple[float, ...]) -> str:
    """Milliseconds to the first token, and of its parts."""
    shares = ", ".join(f"{name} {1e3 * part:.0f}" for name, part in zip(PARTS, parts, strict=True))
    return f"first token {1e3 * sum(parts):4.0f} ms ({shares})"


if __name__ == "__main__":
    sys.exit(main())
