"""The chooser: order of application, rows along a draft, limits, log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macspec.engine import processors
from macspec.engine.noise import keyed_gumbel
from macspec.engine.processors import truncated
from macspec.engine.sampling import Chooser
from macspec.errors import RequestError
from macspec.request import SamplingParams

VOCAB = 32
EOS = frozenset({31})


def chooser(prompt: tuple[int, ...] = (1, 2, 3), seed: int = 5, vocab: int = VOCAB, **sampling: Any) -> Chooser:
    return Chooser(SamplingParams(**sampling), vocab, None, prompt, seed, EOS)


def logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32) * 2)


def choices(chooser: Chooser, rows: mx.array, position: int = 3, draft: tuple[int, ...] = ()) -> list[int]:
    chosen = chooser.choose(rows, position, draft)
    assert chosen.dtype == mx.int32
    return np.array(chosen).tolist()


def test_greedy_takes_the_lowest_of_equals():
    rows = np.zeros((2, VOCAB), dtype=np.float32)
    rows[0, [7, 9, 30]] = 4.0
    assert choices(chooser(), mx.array(rows)) == [7, 0]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_logits_of_any_type(dtype):
    rows = logits(3).astype(dtype)
    assert choices(chooser(), rows) == np.array(mx.argmax(rows.astype(mx.float32), axis=-1)).tolist()


@given(
    temperature=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    top_k=st.sampled_from([0, 1, 4, 31, 32, 99]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    rows=st.integers(1, 6),
    seed=st.integers(0, 2**64 - 1),
    penalty=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_row_alone_gets_the_same_choice(temperature, top_p, top_k, min_p, rows, seed, penalty):
    options = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    if penalty:
        options |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.2, "penalty_window": 3}
    block, draft = logits(rows, seed=seed % 1000), tuple((seed >> n) % VOCAB for n in range(rows - 1))
    together = choices(chooser(seed=seed, **options), block, 3, draft)
    single = chooser(seed=seed, **options)
    for row in range(rows):
        assert choices(single, block[row : row + 1], 3 + row) == [together[row]]
        if row < rows - 1:
            single.commit([draft[row]])


def test_the_noise_is_added_to_the_logits_over_the_temperature():
    rows = logits(4)
    wanted = mx.argmax(rows / 0.7 + keyed_gumbel(5, 3, 4, VOCAB), axis=-1)
    assert choices(chooser(temperature=0.7), rows) == np.array(wanted).tolist()
    everything = choices(chooser(temperature=0.7, top_k=VOCAB - 1), rows)
    assert everything == np.array(wanted).tolist()


def test_seed_and_position_change_the_choice_and_nothing_else_does():
    rows = logits(1)
    many = [choices(chooser(seed=seed, temperature=1.5), rows)[0] for seed in range(40)]
    assert len(set(many)) > 5
    assert many == [choices(chooser(seed=seed, temperature=1.5), rows)[0] for seed in range(40)]
    assert len({choices(chooser(temperature=1.5), rows, position)[0] for position in range(40)}) > 5


def test_bias_banned_and_allowed():
    rows = mx.zeros((1, VOCAB))
    assert choices(chooser(logit_bias={4: 1.0, 5: 2.0}), rows) == [5]
    assert choices(chooser(logit_bias={5: 2.0}, banned_tokens=(5, 0)), rows) == [1]
    assert choices(chooser(allowed_tokens=(9, 8)), rows) == [8]
    assert choices(chooser(allowed_tokens=(9, 8), banned_tokens=(8,)), rows) == [9]


def test_min_tokens_holds_the_endings_back_row_by_row():
    rows = np.zeros((5, VOCAB), dtype=np.float32)
    rows[:, 31], rows[:, 7] = 9.0, 8.0
    held = chooser(min_tokens=3, stop_token_ids=(7,))
    assert choices(held, mx.array(rows), 3, (0, 0, 0, 0)) == [0, 0, 0, 31, 31]
    assert choices(held, mx.array(rows), 5, (0, 0, 0, 0)) == [0, 31, 31, 31, 31]
    assert choices(held, mx.array(rows), 6, (0, 0, 0, 0)) == [31] * 5


def test_nothing_left_to_choose_is_refused_before_any_work():
    with pytest.raises(RequestError) as raised:
        chooser(allowed_tokens=(31,), min_tokens=2)
    assert raised.value.param == "allowed_tokens"


def penalised(row: np.ndarray, prompt: list[int], own: list[int], params: SamplingParams) -> np.ndarray:
    """The documented penalties, token by token."""
    everything = prompt + own
    if params.penalty_window:
        everything, own = everything[-params.penalty_window :], own[-params.penalty_window :]
    row = row.astype(np.float64).copy()
    for token in set(everything):
        row[token] = (
            row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
        )
    for token in set(own):
        row[token] -= params.presence_penalty + params.frequency_penalty * own.count(token)
    return row


@given(
    repetition=st.sampled_from([1.0, 1.5, 0.6]),
    presence=st.sampled_from([0.0, 1.5, -0.7]),
    frequency=st.sampled_from([0.0, 0.8, -0.3]),
    window=st.sampled_from([0, 1, 3, 100]),
    prompt=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    own=st.lists(st.integers(0, 7), max_size=12),
    draft=st.lists(st.integers(0, 7), max_size=5),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_penalties_see_the_draft_row_by_row(repetition, presence, frequency, window, prompt, own, draft, seed):
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        penalty_window=window,
    )
    block = logits(len(draft) + 1, 8, seed)
    subject = Chooser(params, 8, None, prompt, 0, frozenset())
    subject.commit(own[:5])
    subject.commit(own[5:])
    got = choices(subject, block, len(prompt) + len(own), tuple(draft))
    for row in range(len(draft) + 1):
        wanted = penalised(np.array(block[row]), prompt, own + draft[:row], params)
        # Near-ties may fall either way in another precision.
        assert wanted[got[row]] > wanted.max() - 1e-5
    # A rejected draft leaves no trace.
    assert choices(subject, block[:1], len(prompt) + len(own)) == got[:1]


def test_fast_says_whether_draft_tokens_are_needed():
    assert chooser(temperature=1.0, top_p=0.9, top_k=4, min_p=0.1, logit_bias={1: 1.0}, min_tokens=4).fast
    assert chooser(banned_tokens=(1,), stop=("a",)).fast
    assert not chooser(repetition_penalty=1.1).fast
    assert not chooser(presence_penalty=0.1).fast


def kept_ids(rows: mx.array, **options: Any) -> list[set[int]]:
    left, tokens = truncated(rows, **options)
    finite = np.isfinite(np.array(left))
    ids = np.arange(rows.shape[1])[None].repeat(rows.shape[0], 0) if tokens is None else np.array(tokens)
    return [set(own[keep].tolist()) for own, keep in zip(ids, finite, strict=True)]


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("options", [{"top_p": 0.1}, {"top_p": 0.95}, {"min_p": 0.02}, {"top_p": 0.9, "min_p": 0.01}])
def test_a_large_vocabulary(spread, options, monkeypatch):
    """Flat and peaked rows, so that the short way over the best tokens and the full sort are both taken, and agree."""
    rows = mx.array(np.random.default_rng(1).normal(size=(2, 9000)).astype(np.float32) * spread)
    short = kept_ids(rows, **options)
    monkeypatch.setattr(processors, "HEAD", 10_000)
    assert short == kept_ids(rows, **options)
    for row, own in zip(np.array(rows, dtype=np.float64), short, strict=True):
        p = np.exp(row - row.max())
        p /= p.sum()
        order = np.argsort(-p)
        keep = (np.cumsum(p[order]) - p[order] < options.get("top_p", 1.0)) & (
            p[order] >= options.get("min_p", 0.0) * p.max()
        )
        assert abs(len(own) - int(keep.sum())) <= max(2, len(own) // 500)
        assert own == set(order[: len(own)].tolist())


def test_ties_with_the_last_token_kept_are_kept():
    rows = np.full((1, 9000), -30.0, dtype=np.float32)
    rows[0, :3], rows[0, 3:5000] = 8.0, 0.0
    assert kept_ids(mx.array(rows), top_p=0.5) == [{0, 1, 2}]
    assert kept_ids(mx.array(rows), top_p=0.7) == [set(range(5000))]


def test_min_p_is_relative_to_the_likeliest():
    row = mx.array(np.log(np.array([[0.5, 0.3, 0.1499, 0.0501]], dtype=np.float32)))
    assert kept_ids(row, min_p=0.5) == [{0, 1}]
    assert kept_ids(row, min_p=1.0) == [{0}]
    assert kept_ids(row, top_k=3, top_p=0.85) == [{0, 1, 2}]
    assert kept_ids(row, top_k=3, top_p=0.8) == [{0, 1}]
    assert kept_ids(row, top_k=3, min_p=0.5) == [{0, 1}]


def test_logprobs_are_the_models_own():
    rows = logits(3)
    exact = np.array(rows, dtype=np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    subject = chooser(temperature=0.3, logit_bias={4: 50.0}, banned_tokens=(1,))
    for row, (own, top) in enumerate(subject.logprob_rows(rows, [4, 1, 9], 5)):
        assert math.isclose(own, exact[row, [4, 1, 9][row]], abs_tol=1e-5)
        order = np.argsort(-exact[row])[:5]
        assert [token for token, _ in top] == order.tolist()
        np.testing.assert_allclose([value for _, value in top], exact[row, order], atol=1e-5)
    assert subject.logprobs(rows[0], 4, 0)[1] == []
    assert len(subject.logprobs(rows[0], 4, 20)[1]) == 20
