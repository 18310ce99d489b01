"""Every parameter works inside speculation: same seed, same tokens, at every depth."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from fake_drafters import FakeDrafter, oracle_drafter, random_drafter
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.request import Grammar
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState
from tiny_engine import ask, random_prompt, tiny_target

VOCAB = 128
FAMILIES = ("llama", "qwen3", "gemma3_text")
END = VOCAB - 1

#: One value per parameter that changes what is chosen.
ALONE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "temperature": {"temperature": 0.7},
    "top_p": {"temperature": 1.0, "top_p": 0.6},
    "top_k": {"temperature": 1.2, "top_k": 5},
    "min_p": {"temperature": 1.1, "min_p": 0.2},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "presence_penalty": {"presence_penalty": 0.8},
    "frequency_penalty": {"frequency_penalty": 0.6},
    "negative penalties": {"presence_penalty": -0.5, "frequency_penalty": -0.3, "temperature": 1.0},
    "penalty_window": {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "penalty_window": 4},
    "logit_bias": {"logit_bias": {3: 2.0, 5: -4.0, END: -3.0}, "temperature": 1.0},
    "banned_tokens": {"banned_tokens": tuple(range(0, VOCAB, 3))},
    "allowed_tokens": {"allowed_tokens": tuple(range(0, VOCAB, 5)), "temperature": 1.0},
    "min_tokens": {"logit_bias": {END: 6.0}, "min_tokens": 6},
    "stop_token_ids": {"stop_token_ids": tuple(range(40)), "min_tokens": 3},
    "ignore_eos": {"logit_bias": {END: 4.0}, "ignore_eos": True},
    "stop": {"stop": ("a", "B", "9", "Zz")},
    "logprobs": {"logprobs": 3, "temperature": 1.0},
    "n": {"n": 3, "temperature": 1.0},
    "json_schema": {"grammar": Grammar("json_schema", '{"type": "array", "items": {"type": "boolean"}}')},
    "json_object": {"grammar": Grammar("json_object"), "temperature": 1.0},
    "regex": {"grammar": Grammar("regex", "(ab|[c-f]{2,9}){3,8}"), "temperature": 1.0},
    "choice": {"grammar": Grammar("choice", json.dumps(["yes", "yesterday", "no"])), "temperature": 1.0},
    "lark": {"grammar": Grammar("lark", 'start: "x" start "y" | "z" | "zz"'), "temperature": 1.0},
    "grammar and penalties": {
        "grammar": Grammar("regex", "[a-e]+\\.[a-e]+"),
        "frequency_penalty": 1.0,
        "min_tokens": 12,
        "logit_bias": {END: 2.0},
    },
}


class RandomDepth:
    """A policy that parks, drafts and truncates at random."""

    name, needs_confidence = "random", True

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth if self.random.random() < 0.8 else 0

    def choose(self, state: RoundState) -> Decision:
        return Decision(self.random.randint(0, state.max_depth), "random")

    def observe(self, outcome: RoundOutcome) -> None:
        pass


@pytest.fixture(scope="module")
def targets():
    return {family: tiny_target(family, seed=7) for family in FAMILIES}


def answers(target, drafter, depth: str, prompt, policy_seed: int = 0, **sampling):
    request = ask(prompt, depth, **sampling)
    policy = None if depth != "auto" else lambda name: RandomDepth(policy_seed)
    engine = Engine(target, drafter, prefill_chunk=5, policy_factory=policy)
    return collect(engine.generate(request))


def drafters(plain, prompt) -> list[FakeDrafter]:
    """Mostly right, always right and running on beyond the end, and random."""
    known = [*plain.tokens, *range(60, 90)]
    return [
        oracle_drafter(known, len(prompt), wrong_every=4),
        oracle_drafter(known, len(prompt)),
        random_drafter(VOCAB, seed=2),
    ]


@pytest.mark.parametrize("name", ALONE)
def test_alone(targets, name):
    sampling = {"max_tokens": 24, "seed": 11, **ALONE[name]}
    target, prompt = targets["llama"], random_prompt(9, VOCAB, seed=4)
    plain = answers(target, None, "0", prompt, **sampling)
    for depth, drafter in zip(("3", "full", "auto"), drafters(plain[0], prompt), strict=True):
        got = answers(target, drafter, depth, prompt, **sampling)
        for mine, theirs in zip(got, plain, strict=True):
            assert mine.tokens == theirs.tokens
            assert mine.text == theirs.text
            assert (mine.finish_reason, mine.matched_stop) == (theirs.finish_reason, theirs.matched_stop)
            assert mine.seed == theirs.seed
        if depth == "full" and len(plain[0].tokens) > 2:
            assert got[0].stats.accepted > 0


def combination(seed: int) -> dict[str, Any]:
    """A random combination in which every parameter takes part about half of the time."""
    draw = random.Random(seed)

    def maybe(**values: Any) -> dict[str, Any]:
        return values if draw.random() < 0.5 else {}

    sampling: dict[str, Any] = {"max_tokens": draw.randint(1, 24), "seed": draw.getrandbits(64)}
    sampling |= maybe(temperature=draw.choice([0.3, 0.8, 1.0, 1.6]))
    sampling |= maybe(top_p=draw.uniform(0.05, 1.0))
    sampling |= maybe(top_k=draw.randint(1, 60))
    sampling |= maybe(min_p=draw.uniform(0.0, 0.5))
    sampling |= maybe(repetition_penalty=draw.uniform(0.7, 2.0))
    sampling |= maybe(presence_penalty=draw.uniform(-1.5, 2.0))
    sampling |= maybe(frequency_penalty=draw.uniform(-0.5, 2.0))
    sampling |= maybe(penalty_window=draw.randint(1, 12))
    sampling |= maybe(logit_bias={draw.randrange(VOCAB): draw.uniform(-5, 5) for _ in range(6)} | {END: 1.5})
    sampling |= maybe(banned_tokens=tuple(draw.sample(range(VOCAB), 10)))
    sampling |= maybe(stop=tuple(draw.choice("abcdefgXYZ@#") for _ in range(2)))
    sampling |= maybe(stop_token_ids=tuple(draw.sample(range(VOCAB), 2)))
    sampling |= maybe(ignore_eos=True)
    sampling |= maybe(min_tokens=draw.randint(0, sampling["max_tokens"]))
    if draw.random() < 0.3:
        sampling["grammar"] = draw.choice([values["grammar"] for values in ALONE.values() if "grammar" in values])
        sampling.pop("banned_tokens", None)
    elif draw.random() < 0.2:
        sampling["allowed_tokens"] = tuple(range(20, VOCAB))
    return sampling


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 10))])
def test_two_hundred_combinations(targets, block):
    for seed in range(20 * block, 20 * block + 20):
        sampling = combination(seed)
        target = targets[FAMILIES[seed % len(FAMILIES)]]
        prompt = random_prompt(3 + seed % 13, VOCAB, seed)
        plain = answers(target, None, "0", prompt, **sampling)[0]
        for number, depth in enumerate(("3", "full", "auto")):
            drafter = drafters(plain, prompt)[(seed + number) % 3]
            got = answers(target, drafter, depth, prompt, seed, **sampling)[0]
            assert got.tokens == plain.tokens, (seed, depth, sampling)
            assert (got.text, got.finish_reason) == (plain.text, plain.finish_reason), (seed, depth, sampling)
