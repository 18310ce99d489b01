import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macspec.scheduler.depth import RateMeter, best_depth, is_flat

CHANCES = st.lists(st.floats(0.01, 0.999), min_size=1, max_size=15)
TIMES = st.lists(st.floats(0.5, 500.0), min_size=16, max_size=16)
RATES = st.floats(1e-4, 2.0)


def survival(chances: list[float]) -> list[float]:
    return list(itertools.accumulate(chances, lambda a, b: a * b))


@given(CHANCES, TIMES, RATES)
def test_it_is_the_arg_max_over_all_depths(chances: list[float], times: list[float], rate: float) -> None:
    alive = survival(chances)
    depth, tokens, ms = best_depth(alive, times, rate)
    values = [1.0 + sum(alive[:d]) - rate * times[d] for d in range(len(alive) + 1)]
    assert values[depth] == pytest.approx(max(values), abs=1e-6)
    assert tokens == pytest.approx(1.0 + sum(alive[:depth]))
    assert ms == times[depth]


@given(CHANCES, TIMES, RATES, st.floats(1.0, 3.0))
def test_dearer_rows_never_make_it_deeper(chances: list[float], times: list[float], rate: float, more: float) -> None:
    """Every further row costs more by the same factor: the depth may only fall."""
    steep = [times[0]]
    for before, now in itertools.pairwise(times):
        steep.append(steep[-1] + more * abs(now - before))
    rising = [times[0]]
    for before, now in itertools.pairwise(times):
        rising.append(rising[-1] + abs(now - before))
    assert best_depth(survival(chances), steep, rate)[0] <= best_depth(survival(chances), rising, rate)[0]


@given(CHANCES, TIMES, RATES, st.floats(1.0, 3.0))
def test_more_confidence_never_makes_it_shallower(
    chances: list[float], times: list[float], rate: float, more: float
) -> None:
    surer = [min(0.9999, 1.0 - (1.0 - chance) / more) for chance in chances]
    assert best_depth(survival(surer), times, rate)[0] >= best_depth(survival(chances), times, rate)[0]


@given(CHANCES, TIMES, RATES, st.floats(1.0, 3.0))
def test_a_faster_stream_never_buys_more(chances: list[float], times: list[float], rate: float, more: float) -> None:
    rising = sorted(times)
    alive = survival(chances)
    assert best_depth(alive, rising, rate * more)[0] <= best_depth(alive, rising, rate)[0]


def test_jagged_curves_are_searched_past_a_step() -> None:
    # The second row is dear, the others are free: a search that stops at the first that does not pay stays at 0.
    assert best_depth([0.9, 0.85, 0.8, 0.75], [10.0, 20.0, 20.0, 20.0, 20.0], 0.1)[0] == 4


def test_replay_counts() -> None:
    alive = [0.5, 0.4]
    assert best_depth(alive, [10.0, 11.0, 12.0], 0.1)[0] == 2
    depth, _, ms = best_depth(alive, [10.0, 11.0, 12.0], 0.05, [100.0, 100.0])
    assert depth == 0
    assert ms == 10.0
    _, _, ms = best_depth([1.0, 1.0], [10.0, 11.0, 12.0], 0.01, [100.0, 100.0])
    assert ms == 12.0


def test_flat_curves() -> None:
    assert is_flat([100.0, 101.0, 110.0])
    assert not is_flat([100.0, 101.0, 120.0])
    assert not is_flat([110.0, 80.0, 100.0])


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0.1, 1e4)), max_size=300))
def test_the_rate_stays_between_its_clamps(rounds: list[tuple[int, float]]) -> None:
    meter = RateMeter()
    assert meter.rate(0.1, 0.3) == 0.1
    for tokens, ms in rounds:
        meter.add(tokens, ms)
        assert 0.1 <= meter.rate(0.1, 0.3) <= 0.3


def test_the_rate_converges() -> None:
    meter = RateMeter()
    for _ in range(300):
        meter.add(4, 20.0)
    assert meter.rate(0.01, 9.0) == pytest.approx(0.2, rel=0.08)
