"""Medians, ratios and intervals from few, noisy, drifting samples. Pure NumPy.

Rates are compared as logarithms: a ratio is a difference there, its mean is the geometric mean, and a slow-down that
hits both arms alike cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000
#: Fewer prompts than this say too little about their spread for an interval.
MIN_FOR_INTERVAL = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; ``low`` and ``high`` are None when there were too few prompts for one."""

    value: float
    low: float | None = None
    high: float | None = None
    #: Prompts it rests on.
    count: int = 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Second over first: the ratio, its interval, a p-value, and whether the difference is more than noise."""

    ratio: Estimate
    p_value: float
    significant: bool
    method: str


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive values."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def rate(prompts: Sequence[Sequence[float]], *, seed: int = 0) -> Estimate:
    """Geometric mean over prompts of the median over repeats; ``prompts[p]`` holds the rates of prompt p."""
    return _exponential(_bootstrap(prompts, None, seed))


def centre(prompts: Sequence[Sequence[float]]) -> float:
    """The value of `rate` without its interval, for a fraction of the work."""
    return math.exp(sum(_median_log(item) for item in prompts) / len(prompts))


def median_rate(prompts: Sequence[Sequence[float]]) -> float:
    """Median over prompts of the median over repeats."""
    return float(np.median([np.median(item) for item in prompts]))


def paired_ratio(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, seed: int = 0) -> Estimate:
    """Geometric mean over prompts of ``second / first``; both hold the same prompts in the same order.

    Repeat r of one is paired with repeat r of the other, because they ran beside each other. The interval comes from a
    two-level bootstrap, prompts and then repeats inside them, which errs on the wide side, widened for few prompts as
    in Hesterberg, "What Teachers Should Know about the Bootstrap" (2015), section 5.3.
    """
    return _exponential(_bootstrap(second, first, seed))


def compare(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, paired: bool) -> Comparison:
    """Is the second run faster or slower than the first? Paired by prompt when the prompts are the same.

    Unpaired runs are compared by Welch's t-test on the logarithms of the per-prompt medians. Paired runs must pass
    both the paired t-test and the bootstrap, so that neither a lucky resample nor a heavy tail decides alone.
    """
    if paired:
        ratio = paired_ratio(first, second)
        differences = np.array(
            [_median_log(b[: len(a)]) - _median_log(a[: len(b)]) for a, b in zip(first, second, strict=True)]
        )
        p_value = _one_sample_p(differences)
        outside = ratio.interval is not None and not ratio.interval[0] <= 1.0 <= ratio.interval[1]
        return Comparison(ratio, p_value, outside and p_value < 1 - CONFIDENCE, "paired bootstrap")
    a = np.array([_median_log(item) for item in first])
    b = np.array([_median_log(item) for item in second])
    estimate, p_value = _welch(a, b)
    return Comparison(estimate, p_value, p_value < 1 - CONFIDENCE, "Welch")


def _median_log(values: Sequence[float]) -> float:
    return float(np.median(np.log(np.asarray(values, dtype=np.float64))))


def _exponential(estimate: Estimate) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return Estimate(math.exp(estimate.value), count=estimate.count)
    return Estimate(math.exp(estimate.value), math.exp(estimate.low), math.exp(estimate.high), estimate.count)


def _padded(prompts: Sequence[Sequence[float]], repeats: Sequence[int]) -> Floats:
    table = np.zeros((len(prompts), max(repeats)))
    for row, (values, count) in enumerate(zip(prompts, repeats, strict=True)):
        table[row, :count] = np.log(np.asarray(values[:count], dtype=np.float64))
    return table


def _bootstrap(values: Sequence[Sequence[float]], base: Sequence[Sequence[float]] | None, seed: int) -> Estimate:
    """Mean over prompts of the median over repeats of log values (minus that of log base), with its interval."""
    if not values or any(not item for item in values) or (base is not None and any(not item for item in base)):
        raise ValueError("every prompt needs at least one rate")
    counts = [len(item) for item in values] if base is None else _common(values, base)
    count = len(values)
    table = _padded(values, counts)
    below = _padded(base, counts) if base is not None else np.zeros_like(table)
    points = np.array(
        [np.median(table[p, :n]) - np.median(below[p, :n]) for p, n in enumerate(counts)], dtype=np.float64
    )
    value = float(points.mean())
    if count < MIN_FOR_INTERVAL:
        return Estimate(value, count=count)
    rng = np.random.default_rng(seed)
    which = rng.integers(0, count, (RESAMPLES, count))
    limits = np.asarray(counts)[which][..., None]
    again = np.floor(rng.random((RESAMPLES, count, max(counts))) * limits).astype(np.int64)
    drawn = _medians(table[which[..., None], again])
    if base is not None:
        drawn -= _medians(below[which[..., None], again])
    centres = drawn.mean(axis=1)
    # Percentiles of a bootstrap of n points are too narrow by sqrt((n - 1) / n) and by normal instead of t tails.
    tail = _normal_cdf(-_t_quantile(count - 1) * math.sqrt(count / (count - 1)))
    low, high = np.quantile(centres, [tail, 1 - tail])
    return Estimate(value, min(float(low), value), max(float(high), value), count)


def _medians(table: Floats) -> Floats:
    """Median over the last axis; for one or two values that is the mean, which is far cheaper."""
    result = table.mean(axis=-1) if table.shape[-1] <= 2 else np.median(table, axis=-1)
    return np.asarray(result, dtype=np.float64)


def _common(values: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> list[int]:
    if len(values) != len(base):
        raise ValueError("both sides of a ratio need the same prompts")
    return [min(len(a), len(b)) for a, b in zip(values, base, strict=True)]


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _one_sample_p(differences: Floats) -> float:
    count = len(differences)
    if count < 2:
        return 1.0
    spread = float(differences.std(ddof=1)) / math.sqrt(count)
    centre = float(differences.mean())
    if spread == 0.0:
        return 1.0 if centre == 0.0 else 0.0
    return t_two_sided(abs(centre) / spread, count - 1)


def _welch(a: Floats, b: Floats) -> tuple[Estimate, float]:
    """Ratio b over a with interval, and the two-sided p-value, from log rates."""
    centre = float(b.mean() - a.mean())
    if len(a) < 2 or len(b) < 2:
        return Estimate(math.exp(centre), count=min(len(a), len(b))), 1.0
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    error = math.sqrt(va + vb)
    if error == 0.0:
        same = math.exp(centre)
        return Estimate(same, same, same, min(len(a), len(b))), 1.0 if centre == 0.0 else 0.0
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    reach = _t_quantile(freedom) * error
    estimate = Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach), min(len(a), len(b)))
    return estimate, t_two_sided(abs(centre) / error, freedom)


def t_two_sided(statistic: float, freedom: float) -> float:
    """Two-sided tail of Student's t beyond ``statistic`` ≥ 0."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + statistic * statistic))


def _t_quantile(freedom: float) -> float:
    """Positive t whose two-sided tail is ``1 - CONFIDENCE``, by bisection."""
    low, high = 0.0, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        if t_two_sided(middle, freedom) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function by its continued fraction (Lentz's method)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1 - (a + b) * x / (a + 1), tiny)
    total = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1 + numerator / c
            c = c if abs(c) > tiny else tiny
            total *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * total / a
