"""draft_confidence, keyed_choice and accept_prefix against float64 and against the engine's own definitions."""

import mlx.core as mx
import numpy as np
import pytest
from metalcpu import metal_kernel, options

from macspec.engine.noise import keyed_gumbel
from macspec.engine.verify import accepted_prefix
from macspec.kernels.calls import Kernels, row_tile
from macspec.kernels.source import load

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
VOCABULARIES = (2, 31, 1000, 151_936, 248_320)


def confidence(logits: mx.array) -> np.ndarray:
    """Columns log-sum-exp, top probability, gap, entropy, in float64."""
    x = np.array(logits.astype(mx.float32)).astype(np.float64)
    top = x.max(-1, keepdims=True)
    log_sum = np.log(np.exp(x - top).sum(-1, keepdims=True)) + top
    log_p = x - log_sum
    entropy = -(np.exp(log_p) * np.where(np.isfinite(log_p), log_p, 0)).sum(-1)
    ordered = np.sort(x, -1)
    return np.stack([log_sum[:, 0], np.exp(top - log_sum)[:, 0], ordered[:, -1] - ordered[:, -2], entropy], -1)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_confidence_equals_float64(kernels, every_schedule, vocab, dtype):
    mx.random.seed(vocab)
    logits = (mx.random.normal((3, vocab)) * 4).astype(dtype)
    token, stats = every_schedule(lambda: kernels.draft_confidence(logits))
    assert np.array_equal(token, np.array(mx.argmax(logits, axis=-1)))
    np.testing.assert_allclose(stats, confidence(logits), rtol=2e-6, atol=3e-6)


def test_confidence_of_peaked_masked_and_tied_rows(kernels):
    rows = np.full((4, 5000), -np.inf, np.float32)
    rows[0, 4321] = 7.0  # one token left
    rows[1, :] = -20.0
    rows[1, 17] = 60.0  # peaked
    rows[2, [40, 3000]] = 1.5  # a tie: the lowest index wins, the gap is 0
    rows[3, :] = 0.25  # flat
    token, stats = kernels.draft_confidence(mx.array(rows))
    assert token.tolist() == [4321, 17, 40, 0]
    found = np.array(stats)
    np.testing.assert_allclose(found[:, 1], [1, 1, 0.5, 1 / 5000], rtol=1e-6)
    np.testing.assert_allclose(found[1:, 2], [80, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(found[:, 3], [0, 0, np.log(2), np.log(5000)], atol=1e-5)


def test_confidence_reads_the_wanted_rows_once_and_zeroes_the_others(kernels):
    logits = mx.random.normal((5, 3000))
    token, stats = kernels.draft_confidence(logits, rows=2)
    report = kernels.built(load("draft_confidence")).report
    assert report.buffers["logits"].read == report.buffers["logits"].read_distinct == 2 * 3000 * 4
    assert token.tolist()[2:] == [0, 0, 0] and not np.array(stats)[2:].any()
    assert np.array_equal(token[:2], mx.argmax(logits[:2], axis=-1))


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.3])
def test_choice_equals_the_engines(kernels, every_schedule, vocab, dtype, temperature):
    mx.random.seed(vocab)
    logits = (mx.random.normal((3, vocab)) * 3).astype(dtype)
    seed, position = 0x1234_5678_9ABC_DEF0, 4_000_000_000
    (token,) = every_schedule(lambda: kernels.keyed_choice(logits, temperature, seed, position))
    scores = logits.astype(mx.float32)
    if temperature:
        scores = scores / temperature + keyed_gumbel(seed, position, 3, vocab)
    scores = np.array(scores)
    chosen, best = scores[np.arange(3), token], scores.max(-1)
    assert (best - chosen <= 4e-6 * np.maximum(1, np.abs(best))).all()
    assert temperature or np.array_equal(token, scores.argmax(-1))


def test_choices_over_many_seeds_and_the_distribution_they_draw_from(kernels):
    logits = mx.broadcast_to(mx.log(mx.array([0.5, 0.25, 0.125, 0.125])), (400, 4))
    found = np.concatenate([np.array(kernels.keyed_choice(logits, 1.0, seed, 10)) for seed in range(10)])
    expected = np.concatenate([np.array(mx.argmax(logits + keyed_gumbel(s, 10, 400, 4), axis=-1)) for s in range(10)])
    assert np.array_equal(found, expected)
    frequency = np.bincount(found, minlength=4) / found.size
    assert np.abs(frequency - [0.5, 0.25, 0.125, 0.125]).max() < 0.03


def test_choice_is_the_same_for_every_number_of_rows_and_threads(kernels):
    logits = mx.random.normal((6, 2500))
    whole = kernels.keyed_choice(logits, 0.8, 99, 1000).tolist()
    assert [kernels.keyed_choice(logits[r : r + 1], 0.8, 99, 1000 + r).item() for r in range(6)] == whole
    assert Kernels(metal_kernel, max_threads=512).keyed_choice(logits, 0.8, 99, 1000).tolist() == whole
    assert kernels.keyed_choice(logits, 0.8, 99, 1000, rows=4).tolist() == [*whole[:4], 0, 0]


def test_choice_ignores_forbidden_tokens_and_breaks_ties_downwards(kernels):
    rows = np.full((3, 100), -np.inf, np.float32)
    rows[0, 63] = -5.0
    rows[1, [20, 10]] = 2.0
    assert kernels.keyed_choice(mx.array(rows), 0.0, 1, 1).tolist() == [63, 10, 0]
    for seed in range(20):
        hot = kernels.keyed_choice(mx.array(rows), 1.0, seed, 1).tolist()
        assert hot[0] == 63 and hot[1] in (10, 20) and hot[2] == 0


def accept(kernels, draft, choice, depth, eos):
    tokens, summary = kernels.accept_prefix(
        mx.array(draft or [0], mx.int32), mx.array(choice, mx.int32), depth, mx.array(list(eos) or [-1], mx.int32)
    )
    accepted, committed, last, ended = summary.tolist()
    return accepted, [t for t in tokens.tolist() if t >= 0], committed, last, bool(ended)


def test_acceptance_equals_the_engines_rule(kernels):
    random = np.random.default_rng(5)
    for _ in range(60):
        depth = int(random.integers(0, 16))
        choice = random.integers(0, 4, depth + 1 + int(random.integers(0, 3))).tolist()
        draft = [c if random.random() < 0.8 else int(random.integers(0, 4)) for c in choice[:depth]]
        eos = {3} if random.random() < 0.3 else set()
        expected = accepted_prefix(draft, choice)
        committed = choice[: expected + 1]
        ended = any(t in eos for t in committed)
        if ended:
            committed = committed[: next(i for i, t in enumerate(committed) if t in eos) + 1]
        with options(schedule=int(random.integers(0, 5))):
            found = accept(kernels, draft, choice, depth, eos)
        assert found == (min(expected, len(committed)), committed, len(committed), committed[-1], ended)


def test_acceptance_of_nothing_and_of_everything(kernels):
    assert accept(kernels, [], [7], 0, {9}) == (0, [7], 1, 7, False)
    assert accept(kernels, [4, 5], [6, 5, 1], 2, ()) == (0, [6], 1, 6, False)
    assert accept(kernels, list(range(31)), list(range(32)), 31, ()) == (31, list(range(32)), 32, 31, False)
    assert accept(kernels, [4, 9, 5], [4, 9, 5, 1], 3, {2, 9}) == (2, [4, 9], 2, 9, True)
    assert accept(kernels, [4, 9, 5], [4, 9, 5, 1], 1, {8}) == (
        1,
        [4, 9],
        2,
        9,
        False,
    )  # depth below the draft's length


def test_row_tiles():
    assert [row_tile(r) for r in (1, 2, 3, 5, 9, 16)] == [1, 2, 4, 8, 16, 16]
    with pytest.raises(ValueError, match="at most 16"):
        row_tile(17)
