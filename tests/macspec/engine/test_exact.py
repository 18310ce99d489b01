"""Exact mode: plain decoding's text although rows of wide passes come out otherwise than rows alone."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_unflatten

from fake_drafters import oracle_drafter, random_drafter
from macspec.api import collect
from macspec.engine.contest import contested, contested_draw
from macspec.engine.exact import Exact
from macspec.engine.loop import Engine
from macspec.engine.processors import truncated
from macspec.engine.row_noise import PRIOR_TOKENS, RowNoise, measure
from macspec.engine.session import Session
from macspec.kernels.library import KernelLibrary
from macspec.request import Grammar
from tiny_engine import ask, random_prompt, tiny_target

VOCAB = 128
#: Full attention, windows beside full attention, recurrent layers beside attention.
FAMILIES = ("llama", "gemma3_text", "qwen3_5")
TOKENS = 32


class CoarseLinear(nn.Linear):
    """A linear layer that sees rounded inputs when a pass has several rows: what another kernel would do, larger."""

    steps = 24

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(mx.round(x * self.steps) / self.steps if x.size > x.shape[-1] else x)


def coarse_target(family: str, seed: int = 3, steps: int = 24):
    """A tiny target whose rows, keys and values depend on the row count, the less the more ``steps``."""
    target = tiny_target(family, seed)
    found = []
    for name, module in target.model.named_modules():
        if type(module) is nn.Linear:
            coarse = CoarseLinear(1, 1, bias=False)
            coarse.update(module.parameters())
            coarse.steps = steps
            found.append((name, coarse))
    assert found
    target.model.update_modules(tree_unflatten(found))
    return target


@pytest.fixture(scope="module")
def targets():
    return {family: coarse_target(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def noises(targets):
    return {family: measure(target, Engine(target, None)._new_cache, 8) for family, target in targets.items()}


def engine(target, drafter, noise: RowNoise | None, exact: bool = True) -> Engine:
    made = Engine(target, drafter, prefill_chunk=5, exact=exact)
    # Speculation must go on however many near-ties there are, or nothing would be tested.
    made._noise = None if noise is None else replace(noise, density=0.0, tokens=10**6)
    return made


def answers(made: Engine, request):
    return collect(made.generate(request))


def drafter_for(seed: int, plain, prompt):
    """Right, right two times out of three, or hardly ever."""
    if seed % 3 == 2:
        return random_drafter(VOCAB)
    return oracle_drafter(plain.tokens, len(prompt), wrong_every=3 * (seed % 3))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_differ_are_seen(noises, family):
    noise = noises[family]
    assert not noise.same_bits
    assert 1e-3 < noise.largest < 10.0
    assert noise.compared >= 64


def test_a_target_whose_rows_are_alike_needs_nothing():
    """Every product by itself row by row: the same bits whatever the number of rows."""

    class Alone(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            return mx.sum(x[..., None, :] * self.weight, axis=-1)

    target = tiny_target("llama", 3, num_attention_heads=1, num_key_value_heads=1)
    found = []
    for name, module in target.model.named_modules():
        if type(module) is nn.Linear:
            alone = Alone(1, 1, bias=False)
            alone.update(module.parameters())
            found.append((name, alone))
    target.model.update_modules(tree_unflatten(found))
    target.model.set_dtype(mx.bfloat16)
    assert measure(target, Engine(target, None)._new_cache, 8).same_bits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_exact_text_is_the_plain_one_where_the_ordinary_one_is_not(targets, noises, family, temperature):
    target, differing, redecided = targets[family], 0, 0
    for seed in range(3, 6):
        prompt = random_prompt(11, VOCAB, seed)
        sampling = {"temperature": temperature, "seed": seed, "max_tokens": TOKENS, "ignore_eos": True}
        plain = answers(engine(target, None, None, False), ask(prompt, "0", **sampling))[0]
        drafter = drafter_for(seed, plain, prompt)
        request = ask(prompt, "full", **sampling)
        exact = answers(engine(target, drafter, noises[family]), request)[0]
        assert exact.tokens == plain.tokens
        assert exact.text == plain.text
        redecided += exact.stats.redecided
        differing += answers(engine(target, drafter, None, False), request)[0].tokens != plain.tokens
    assert differing > 0
    assert redecided > differing


def test_what_is_decided_again_has_the_bits_of_plain_decoding(monkeypatch):
    """And one more row on top of the caches as they are would not have them, for keys and values differ too."""
    target, prompt = coarse_target("llama", steps=400), random_prompt(11, VOCAB)
    noise = measure(target, Engine(target, None)._new_cache, 8)
    sampling = {"max_tokens": 120, "ignore_eos": True}
    rows, forward = {}, Session.forward

    def recorded(self, tokens):
        logits = forward(self, tokens)
        rows[len(self.tokens)] = np.array(logits[-1])
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(Session, "forward", recorded)
        plain = answers(engine(target, None, None, False), ask(prompt, "0", **sampling))[0]

    equal, on_top, spans, again = [], [], [], Exact._again

    def compared(self, draft, doubtful):
        position = len(self.session.tokens) + len(draft)
        self.session.cache.rollback()
        on_top.append(np.array_equal(np.array(self.session.forward_singly(draft)[-1]), rows[position]))
        spans.append(self.session.cache.length - self._clean.length)
        settled = again(self, draft, doubtful)
        equal.append(np.array_equal(np.array(settled.logits[-1]), rows[position]))
        return settled

    monkeypatch.setattr(Exact, "_again", compared)
    drafter = oracle_drafter(plain.tokens, len(prompt))
    assert answers(engine(target, drafter, noise), ask(prompt, "full", **sampling))[0].tokens == plain.tokens
    assert len(equal) > 2 and max(spans) > 12
    assert all(equal)
    assert not all(on_top)


SETTINGS = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "penalty_window": 20},
    "top-p": {"temperature": 0.9, "top_p": 0.9},
    "top-k and min-p": {"temperature": 1.1, "top_k": 12, "min_p": 0.02},
    "grammar": {"grammar": Grammar("regex", "[a-z ]{20,60}"), "temperature": 0.7},
    "logprobs": {"logprobs": 2},
    "several answers": {"n": 2, "temperature": 0.8},
    "bias and early end": {"logit_bias": {5: 3.0, 127: 4.0}, "min_tokens": 6, "ignore_eos": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_parameter_works_with_it(targets, noises, name):
    target, noise, redecided = targets["llama"], noises["llama"], 0
    for seed in range(3):
        prompt = random_prompt(9, VOCAB, seed)
        sampling = {"seed": seed, "max_tokens": TOKENS, "ignore_eos": True, **SETTINGS[name]}
        plain = answers(engine(target, None, None, False), ask(prompt, "0", **sampling))
        drafter = drafter_for(seed, plain[0], prompt)
        exact = answers(engine(target, drafter, noise), ask(prompt, "full", **sampling))
        redecided += sum(answer.stats.redecided for answer in exact)
        assert [answer.tokens for answer in exact] == [answer.tokens for answer in plain]
        assert [answer.text for answer in exact] == [answer.text for answer in plain]
        assert [answer.finish_reason for answer in exact] == [answer.finish_reason for answer in plain]
        if "logprobs" in sampling:
            pairs = zip(exact[0].token_infos, plain[0].token_infos, strict=True)
            assert all(abs(found.logprob - expected.logprob) <= 2 * noise.bound for found, expected in pairs)
    assert redecided > 0


def test_a_stop_string_inside_a_redecided_block_ends_the_answer(targets, noises):
    target, prompt = targets["llama"], random_prompt(9, VOCAB, 2)
    whole = answers(engine(target, None, None, False), ask(prompt, "0", max_tokens=TOKENS, ignore_eos=True))[0]
    for begin in range(4, 24, 4):
        sampling = {"max_tokens": TOKENS, "ignore_eos": True, "stop": (whole.text[begin : begin + 2],)}
        plain = answers(engine(target, None, None, False), ask(prompt, "0", **sampling))[0]
        exact = answers(
            engine(target, oracle_drafter(whole.tokens, len(prompt)), noises["llama"]), ask(prompt, "full", **sampling)
        )[0]
        assert (exact.text, exact.tokens, exact.matched_stop) == (plain.text, plain.tokens, plain.matched_stop)
        assert exact.finish_reason == "stop"


@pytest.mark.parametrize("family", FAMILIES)
def test_later_turns_are_plain_too(targets, noises, family):
    """Rows that rounds left must not serve as a prompt's, nor may those of an answer that was not exact."""
    target, noise = targets[family], noises[family]

    def conversation(drafter, depth):
        made, tokens, found = engine(target, drafter, noise), random_prompt(12, VOCAB, 4), []
        for turn in range(3):
            request = ask(tokens, depth, max_tokens=20, ignore_eos=True)
            if turn == 1:
                answers(made, replace(request, exact=False, depth="full"))
            answer = answers(made, request)[0]
            found.append(answer.tokens)
            tokens = (*tokens, *answer.tokens, *random_prompt(6, VOCAB, turn))
        return found

    assert conversation(random_drafter(VOCAB), "full") == conversation(random_drafter(VOCAB), "0")


def test_only_the_prompt_is_kept_for_later_requests(targets, noises):
    made, prompt = engine(targets["llama"], random_drafter(VOCAB), noises["llama"]), random_prompt(12, VOCAB)
    first = answers(made, ask(prompt, "full", max_tokens=10, ignore_eos=True))[0]
    again = answers(made, ask((*prompt, *first.tokens, 3), "full", max_tokens=4, ignore_eos=True))[0]
    assert again.stats.cached_tokens == len(prompt) - 1


def test_an_answer_that_would_see_many_near_ties_is_decoded_plainly(targets, noises):
    target, prompt, drafter = targets["llama"], random_prompt(11, VOCAB), random_drafter(VOCAB)
    made = Engine(target, drafter, prefill_chunk=5, exact=True)
    made._noise = replace(noises["llama"], density=1e6)
    assert made._noise.rate > 0.9
    answer = answers(made, ask(prompt, "full", max_tokens=TOKENS, ignore_eos=True))[0]
    assert (answer.stats.redecided, drafter.drafts) == (0, 0)


def test_what_answers_show_counts_more_and_more():
    noise = RowNoise(largest=0.01, compared=64, max_rows=8, density=1.0)
    assert noise.rate == pytest.approx(0.04)
    noise.tokens = 100 * PRIOR_TOKENS
    assert noise.rate < 0.0005
    noise.near_ties = noise.tokens // 10
    assert noise.rate == pytest.approx(0.1, rel=0.02)
    noise.observe(0.005)
    assert noise.bound == pytest.approx(0.02)
    noise.observe(0.03)
    assert noise.bound == pytest.approx(0.06)


def test_a_kernel_failure_in_the_middle_leaves_a_whole_answer(targets, noises, monkeypatch):
    """The caches are made anew from the tokens; what was plain's before is then the new start."""
    prompt = random_prompt(11, VOCAB)
    made, library = engine(targets["llama"], random_drafter(VOCAB), noises["llama"]), KernelLibrary("off", None)
    calls = []

    def guard(run, undo, suspects=()):
        """Every fifth time the work is undone and made again, as after a failure."""
        calls.append(run())
        if len(calls) % 5 == 0:
            undo()
            calls.append(run())
        return calls[-1]

    monkeypatch.setattr(library, "guard", guard)
    made.use(library)
    answer = answers(made, ask(prompt, "full", max_tokens=TOKENS, ignore_eos=True))[0]
    assert len(answer.tokens) == TOKENS
    assert len(calls) > 20
    assert answer.stats.redecided > 0


@pytest.mark.parametrize(
    "truncation",
    [{}, {"top_p": 0.8}, {"top_k": 4}, {"min_p": 0.1}, {"top_p": 0.7, "top_k": 6, "min_p": 0.02}],
    ids=["none", "top-p", "top-k", "min-p", "all"],
)
def test_a_choice_beyond_doubt_stands_whatever_the_error(truncation):
    """Scores off by up to the slack never turn a choice that was called safe, and most choices are."""
    slack, rows, vocab = 0.05, 400, 24
    rng = np.random.default_rng(1)
    scores = rng.normal(0, 1.5, (rows, vocab)).astype(np.float32)
    noise = rng.gumbel(size=(rows, vocab)).astype(np.float32)

    def draw(values: np.ndarray) -> np.ndarray:
        left, tokens = truncated(mx.array(values), **truncation)
        if tokens is None:
            return np.array(mx.argmax(left + mx.array(noise), axis=-1))
        best = mx.argmax(left + mx.take_along_axis(mx.array(noise), tokens, axis=-1), axis=-1, keepdims=True)
        return np.array(mx.take_along_axis(tokens, best, axis=-1)[:, 0])

    choices = draw(scores)
    safe = ~np.array(contested_draw(mx.array(scores), mx.array(noise), mx.array(choices), slack, **truncation))
    assert 0.75 < safe.mean() < 1.0
    turned = np.zeros(rows, bool)
    for _ in range(60):
        error = rng.choice([-slack / 2, slack / 2, 0.0], (rows, vocab)).astype(np.float32)
        turned |= draw(scores + error) != choices
    assert turned.any()
    assert not (turned & safe).any()


def test_a_single_token_left_is_beyond_doubt():
    scores = mx.array([[1.0, -mx.inf, -mx.inf], [1.0, 0.9, -mx.inf]])
    assert contested(scores, mx.array([0, 0], mx.int32), 1e9).tolist() == [False, True]
    assert contested(scores, mx.array([0, 0], mx.int32), 0.09).tolist() == [False, False]
    assert contested(scores, mx.array([0, 1], mx.int32), 0.0).tolist() == [False, True]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "4 bits", "keys and values in 8 bits"])
def test_whatever_numbers_the_target_computes_in(kind):
    """What really happens on this processor: rows alike or nearly so, and always the plain text."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128}
    target = tiny_target("llama", 5, **sizes)
    if kind == "4 bits":
        nn.quantize(target.model, group_size=64, bits=4)
    elif kind.endswith("16"):
        target.model.set_dtype(getattr(mx, kind))
    kv_bits = 8 if "keys" in kind else None
    plain_engine = Engine(target, None, prefill_chunk=5, kv_bits=kv_bits)
    noise = measure(target, plain_engine._new_cache, 8, rows=12)
    assert noise.largest < 0.5
    for seed in range(2):
        prompt = random_prompt(9, VOCAB, seed)
        sampling = {"temperature": 0.7 * seed, "seed": seed, "max_tokens": TOKENS, "ignore_eos": True}
        plain = answers(plain_engine, ask(prompt, "0", **sampling))[0]
        made = Engine(target, drafter_for(seed, plain, prompt), prefill_chunk=5, kv_bits=kv_bits, exact=True)
        made._noise = replace(noise)
        exact = answers(made, ask(prompt, "full", **sampling))[0]
        assert exact.tokens == plain.tokens
