from __future__ import annotations

import math

import numpy as np
import pytest

from macspec.bench import stats


def test_geometric_mean() -> None:
    assert stats.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


# Two-sided tails of Student's t from printed tables.
@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(12.706, 1, 0.05), (2.776, 4, 0.05), (2.228, 10, 0.05), (1.812, 10, 0.10), (3.169, 10, 0.01), (1.96, 1e6, 0.05)],
)
def test_student_tails(statistic: float, freedom: float, tail: float) -> None:
    assert stats.t_two_sided(statistic, freedom) == pytest.approx(tail, rel=2e-3)


def test_rate_is_geometric_over_prompts_and_median_over_repeats() -> None:
    estimate = stats.rate([[10.0, 10.0, 1000.0], [40.0, 40.0, 1.0], [20.0]])
    assert estimate.value == pytest.approx((10 * 40 * 20) ** (1 / 3))
    assert stats.centre([[10.0, 10.0, 1000.0], [40.0, 40.0, 1.0], [20.0]]) == pytest.approx(estimate.value)
    assert estimate.low is not None and estimate.high is not None
    assert estimate.low <= estimate.value <= estimate.high


def test_median_rate() -> None:
    assert stats.median_rate([[1.0], [2.0], [50.0]]) == pytest.approx(2.0)


def test_two_prompts_have_no_interval() -> None:
    assert stats.rate([[10.0], [20.0]]).interval is None


def test_equal_ratios_have_a_point_interval() -> None:
    base = [[10.0, 11.0], [20.0, 19.0], [30.0, 31.0]]
    ratio = stats.paired_ratio(base, [[2 * v for v in p] for p in base])
    assert ratio.value == pytest.approx(2.0)
    assert ratio.interval is not None
    assert ratio.interval[0] <= 2.0 + 1e-12 and ratio.interval[1] >= 2.0 - 1e-12


def test_interval_narrows_with_prompts() -> None:
    rng = np.random.default_rng(1)

    def width(count: int) -> float:
        noisy = [[float(np.exp(0.2 * rng.standard_normal()))] for _ in range(count)]
        interval = stats.rate(noisy).interval
        assert interval is not None
        return math.log(interval[1] / interval[0])

    assert width(200) < 0.5 * width(12)


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one rate"):
        stats.rate([[1.0], []])
    with pytest.raises(ValueError, match="same prompts"):
        stats.paired_ratio([[1.0]], [[1.0], [2.0]])


def test_compare_with_itself_is_no_difference() -> None:
    rates = [[10.0, 11.0], [12.0, 12.5], [9.0, 9.1], [14.0, 13.0]]
    for paired in (True, False):
        result = stats.compare(rates, rates, paired=paired)
        assert not result.significant
        assert result.ratio.value == pytest.approx(1.0)


def test_welch_sees_a_large_difference_and_not_a_small_one() -> None:
    rng = np.random.default_rng(3)
    slow = [[float(10 * np.exp(0.1 * rng.standard_normal()))] for _ in range(20)]
    fast = [[float(15 * np.exp(0.1 * rng.standard_normal()))] for _ in range(20)]
    other = [[float(10 * np.exp(0.1 * rng.standard_normal()))] for _ in range(20)]
    assert stats.compare(slow, fast, paired=False).significant
    assert not stats.compare(slow, other, paired=False).significant


def test_false_alarms_are_rare() -> None:
    rng = np.random.default_rng(9)
    alarms = 0
    for _ in range(200):
        a, b = ([[float(np.exp(0.1 * rng.standard_normal()))] for _ in range(12)] for _ in range(2))
        alarms += stats.compare(a, b, paired=True).significant
    assert alarms <= 20
