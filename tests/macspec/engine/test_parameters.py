"""Every parameter works inside speculation: same seed, same tokens, at every depth."""

from __future__ import annotations

import random

import pytest

from fake_drafters import FakeDrafter, oracle_drafter, random_drafter
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState
from parameter_sets import alone, combination
from tiny_engine import ask, random_prompt, tiny_target

VOCAB = 128
FAMILIES = ("llama", "qwen3", "gemma3_text")
END = VOCAB - 1

ALONE = alone(range(VOCAB), END, VOCAB)


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


def summary(answer):
    """What must not depend on the speculation."""
    return answer.tokens, answer.text, answer.finish_reason, answer.matched_stop, answer.seed


@pytest.mark.parametrize("name", ALONE)
def test_alone(targets, name):
    sampling = {"max_tokens": 24, "seed": 11, **ALONE[name]}
    target, prompt = targets["llama"], random_prompt(9, VOCAB, seed=4)
    plain = answers(target, None, "0", prompt, **sampling)
    for depth, drafter in zip(("3", "full", "auto"), drafters(plain[0], prompt), strict=True):
        got = answers(target, drafter, depth, prompt, **sampling)
        assert [summary(answer) for answer in got] == [summary(answer) for answer in plain]
        if depth == "full" and len(plain[0].tokens) > 2:
            assert got[0].stats.accepted > 0


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 10))])
def test_two_hundred_combinations(targets, block):
    for seed in range(20 * block, 20 * block + 20):
        sampling = combination(seed, range(VOCAB), END, range(20, VOCAB))
        target = targets[FAMILIES[seed % len(FAMILIES)]]
        prompt = random_prompt(3 + seed % 13, VOCAB, seed)
        plain = answers(target, None, "0", prompt, **sampling)
        for number, depth in enumerate(("3", "full", "auto")):
            drafter = drafters(plain[0], prompt)[(seed + number) % 3]
            got = answers(target, drafter, depth, prompt, seed, **sampling)
            assert [summary(answer) for answer in got] == [summary(answer) for answer in plain], (seed, depth, sampling)
