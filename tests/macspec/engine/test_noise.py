"""The keyed noise: a pure function, Gumbel distributed, without visible structure."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from macspec.engine.noise import derived_seed, gumbel_at, keyed_gumbel


def test_a_row_does_not_depend_on_the_others():
    block = np.array(keyed_gumbel(9, 100, 8, 50))
    for row in range(8):
        assert np.array_equal(block[row], np.array(keyed_gumbel(9, 100 + row, 1, 50))[0])


def test_a_token_does_not_depend_on_the_vocabulary():
    full = np.array(keyed_gumbel(3, 7, 2, 1000))
    assert np.array_equal(full[:, :37], np.array(keyed_gumbel(3, 7, 2, 37)))
    tokens = mx.array([[5, 999, 0], [1, 2, 3]], dtype=mx.uint32)
    picked = np.take_along_axis(full, np.array(tokens).astype(np.int64), axis=1)
    assert np.array_equal(np.array(gumbel_at(3, 7, 2, tokens)), picked)


def test_the_values_are_those_of_pcg4d():
    """Recomputed with Python integers; pins the noise, so that seeds keep their meaning."""

    def expected(token: int, position: int, seed: int) -> float:
        words = [token, position, seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
        x, y, z, w = ((word * 1664525 + 1013904223) % 2**32 for word in words)
        for last in (False, True):
            x = (x + y * w) % 2**32
            y = (y + z * x) % 2**32
            z = (z + x * y) % 2**32
            w = (w + y * z) % 2**32
            if not last:
                x, y, z, w = (word ^ word >> 16 for word in (x, y, z, w))
        return -np.log(-np.log1p(-min((w + 0.5) / 2**32, 1 - 2**-24)))

    for seed in (0, 1, 2**40 + 12345, 2**64 - 1):
        got = np.array(keyed_gumbel(seed, 4000, 2, 6))
        wanted = [[expected(token, 4000 + row, seed) for token in range(6)] for row in range(2)]
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_seeds_are_taken_modulo_two_to_the_sixty_four():
    assert np.array_equal(np.array(keyed_gumbel(-1, 0, 1, 9)), np.array(keyed_gumbel(2**64 - 1, 0, 1, 9)))
    assert not np.array_equal(np.array(keyed_gumbel(1, 0, 1, 9)), np.array(keyed_gumbel(1 + 2**32, 0, 1, 9)))


def test_answers_of_one_request_have_seeds_of_their_own():
    seeds = [derived_seed(2**64 - 1, index) for index in range(64)]
    assert seeds[0] == 2**64 - 1
    assert len(set(seeds)) == 64
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_uniform_and_uncorrelated(axis):
    """Chi-square over 256 cells and correlation of neighbours, along each part of the key."""
    count = 1 << 16
    if axis == "tokens":
        noise = np.array(keyed_gumbel(1, 10, 1, count))[0]
    elif axis == "positions":
        noise = np.array(keyed_gumbel(1, 10, count // 4, 4)).ravel(order="F")
    else:
        noise = np.concatenate([np.array(keyed_gumbel(seed, 10, 1, 256))[0] for seed in range(count // 256)])
        noise = noise.reshape(-1, 256).ravel(order="F")
    uniform = np.exp(-np.exp(-noise.astype(np.float64)))
    cells = np.bincount(np.minimum((uniform * 256).astype(int), 255), minlength=256)
    chi_square = float(((cells - count / 256) ** 2 / (count / 256)).sum())
    # 255 degrees of freedom: mean 255, standard deviation 22.6; five deviations on either side.
    assert 142 < chi_square < 368
    assert abs(np.corrcoef(uniform[1:], uniform[:-1])[0, 1]) < 5 / np.sqrt(count)
    assert np.isfinite(noise).all()


def test_the_largest_values_are_resolved():
    """The winners come from the upper tail, where a plain 24-bit uniform would end at 16.6."""
    best = max(float(keyed_gumbel(seed, 0, 64, 1 << 14).max().item()) for seed in range(16))
    assert best > 14.0
    tail = np.array(keyed_gumbel(2, 0, 64, 1 << 14)).ravel()
    tail = tail[tail > 9.0]
    assert len(np.unique(tail)) == len(tail)
