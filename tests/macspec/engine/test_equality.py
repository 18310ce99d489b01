"""The output never depends on the speculation: any drafter, depth and temperature gives plain decoding's tokens."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_drafters import FakeDrafter, oracle_drafter, random_drafter
from macspec.api import collect
from macspec.engine.loop import Engine
from macspec.errors import RequestError
from macspec.request import GenerationRequest, Round
from macspec.scheduler.interface import Decision, RoundOutcome, RoundState
from tiny_engine import ask, random_prompt, tiny_target

VOCAB = 128
FAMILIES = ("llama", "qwen2", "qwen3")


class RandomDepth:
    """A policy that parks, drafts and truncates at random."""

    name = "random"
    needs_confidence = True

    def __init__(self, seed: int) -> None:
        import random

        self.random = random.Random(seed)

    def draft_limit(self, state: RoundState) -> int:
        return state.max_depth if self.random.random() < 0.8 else 0

    def choose(self, state: RoundState) -> Decision:
        assert len(state.confidence) == state.max_depth
        return Decision(self.random.randint(0, state.max_depth), "random")

    def observe(self, outcome: RoundOutcome) -> None:
        assert 0 <= outcome.accepted <= outcome.depth <= outcome.drafted


@pytest.fixture(scope="module")
def targets():
    return {family: tiny_target(family, seed=3) for family in FAMILIES}


def answer(target, drafter, request: GenerationRequest, policy=None):
    engine = Engine(target, drafter, prefill_chunk=5, policy_factory=policy)
    return collect(engine.generate(request))[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("depth", ["1", "3", "full"])
def test_every_drafter_gives_the_plain_tokens(targets, family, temperature, depth):
    target, prompt = targets[family], random_prompt(11, VOCAB, seed=1)
    sampling = {"temperature": temperature, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    plain = answer(target, None, ask(prompt, "0", **sampling))
    assert len(plain.tokens) == 60
    for drafter in (
        random_drafter(VOCAB),
        oracle_drafter(plain.tokens, len(prompt)),
        oracle_drafter(plain.tokens, len(prompt), wrong_every=3),
    ):
        got = answer(target, drafter, ask(prompt, depth, **sampling))
        assert got.tokens == plain.tokens
        assert got.text == plain.text
        assert drafter.drafts > 0


def test_a_perfect_drafter_commits_whole_blocks(targets):
    target, prompt = targets["llama"], random_prompt(9, VOCAB)
    plain = answer(target, None, ask(prompt, "0", max_tokens=40, ignore_eos=True))
    got = answer(target, oracle_drafter(plain.tokens, len(prompt)), ask(prompt, max_tokens=40, ignore_eos=True))
    assert got.stats.acceptance_length == 8
    assert got.stats.rounds == 5
    assert got.stats.accepted == got.stats.verified == 35


@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 24),
    limit=st.integers(1, 40),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    wrong=st.integers(0, 5),
    stop=st.none() | st.integers(0, VOCAB - 1),
)
@settings(max_examples=40, deadline=None)
def test_random_schedules_limits_and_stops(targets, seed, length, limit, temperature, wrong, stop):
    target, prompt = targets["llama"], random_prompt(length, VOCAB, seed)
    sampling = {
        "temperature": temperature,
        "seed": seed,
        "max_tokens": limit,
        "stop_token_ids": () if stop is None else (stop,),
    }
    plain = answer(target, None, ask(prompt, "0", **sampling))
    drafter = oracle_drafter([*plain.tokens, *range(50)], len(prompt), wrong_every=wrong)
    got = answer(target, drafter, ask(prompt, "auto", **sampling), policy=lambda name: RandomDepth(seed))
    assert (got.tokens, got.text, got.finish_reason) == (plain.tokens, plain.text, plain.finish_reason)
    assert got.stats.generation_tokens == len(plain.tokens)


def test_nothing_after_the_end_is_emitted_or_counted(targets):
    """An end token inside an accepted block cuts the block there."""
    target, prompt = targets["qwen3"], random_prompt(7, VOCAB)
    plain = answer(target, None, ask(prompt, "0", max_tokens=30, ignore_eos=True))
    end = plain.tokens[10]
    cut = plain.tokens.index(end) + 1
    drafter = oracle_drafter(plain.tokens, len(prompt))
    got = answer(target, drafter, ask(prompt, max_tokens=30, ignore_eos=True, stop_token_ids=(end,)))
    assert got.tokens == plain.tokens[:cut]
    assert got.finish_reason == "stop"
    assert got.stats.generation_tokens == cut


def test_a_round_costs_two_syncs_and_a_plain_one_costs_one(targets, monkeypatch):
    """Everything that waits for the device goes through `tolist`, `np.array` of an MLX array, or `mx.eval`."""
    import macspec.engine.rounds as module

    target, prompt = targets["llama"], random_prompt(6, VOCAB)
    syncs = {"draft": 0, "choices": 0}
    read, pick = module.Rounds._read_draft, module.Chooser.pick

    def counted_read(self):
        syncs["draft"] += self._block is not None
        return read(self)

    class Counted:
        def __init__(self, array):
            self.array = array

        def tolist(self):
            syncs["choices"] += 1
            return self.array.tolist()

    monkeypatch.setattr(module.Rounds, "_read_draft", counted_read)
    monkeypatch.setattr(module.Chooser, "pick", lambda self, *args: Counted(pick(self, *args)))
    evals = []
    monkeypatch.setattr(module.mx, "eval", lambda *arrays: evals.append(arrays))
    engine = Engine(target, random_drafter(VOCAB), prefill_chunk=5)
    events = engine.generate(ask(prompt, "3", max_tokens=20, ignore_eos=True))
    rounds = [event for event in events if isinstance(event, Round)]
    drafted = sum(event.drafted > 0 for event in rounds)
    assert syncs == {"draft": drafted, "choices": len(rounds)}


def test_a_depth_needs_a_drafter(targets):
    engine = Engine(targets["llama"], None, drafter_reason="nobody trained one.")
    for depth in ("3", "full"):
        with pytest.raises(RequestError, match=f"depth is {depth}, but there is no drafter: nobody trained one") as e:
            list(engine.generate(ask([1, 2, 3], depth, max_tokens=2)))
        assert e.value.param == "depth"
    for depth in ("0", "auto"):
        assert collect(engine.generate(ask([1, 2, 3], depth, max_tokens=2)))[0].tokens


def test_drafts_share_the_noise_where_it_pays_or_as_asked(targets):
    target, prompt = targets["llama"], random_prompt(6, VOCAB)
    for temperature, coupled, shared in (
        (1.0, None, True),
        (0.7, None, False),
        (0.0, None, False),
        (1.0, False, False),
        (0.7, True, True),
        (0.0, True, False),
    ):
        drafter = random_drafter(VOCAB)
        seen = []
        draft = drafter.draft
        drafter.draft = lambda *args, noise=None, draft=draft, seen=seen, **own: (
            seen.append(noise is not None) or draft(*args, noise=noise, **own)
        )
        request = ask(prompt, "full", max_tokens=9, temperature=temperature, seed=1, ignore_eos=True)
        answer(target, drafter, dataclasses.replace(request, coupled=coupled))
        assert seen and set(seen) == {shared}, (temperature, coupled)


def test_parked_rounds_cost_no_draft(targets):
    target, prompt = targets["llama"], random_prompt(6, VOCAB)
    drafter = FakeDrafter(lambda history, count: [0] * count)
    got = answer(target, drafter, ask(prompt, "0", max_tokens=20, ignore_eos=True))
    assert drafter.drafts == 0
    assert got.stats.parked_rounds == got.stats.rounds == 20
