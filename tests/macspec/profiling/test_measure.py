import itertools
from collections.abc import Callable

import pytest

from fake_drafters import FakeDrafter
from macspec.engine.caches import TargetCache
from macspec.errors import ModelLoadError
from macspec.profiling.contexts import filled, filled_context
from macspec.profiling.measure import REPEATS, Meter, fitting, lifted
from tiny_engine import tiny_target


def drafter(depth: int = 3) -> FakeDrafter:
    return FakeDrafter(lambda history, count: [1] * count, max_depth=depth)


def meter(family: str = "llama", *, depth: int = 3, **options: object) -> Meter:
    target = tiny_target(family)
    one = drafter(depth)
    target.set_taps(one.taps)
    return Meter(target, one, contexts=(4, 40, 70), **options)  # type: ignore[arg-type]  # options are keyword arguments


def ticking(step: float) -> Callable[[], float]:
    """A clock that goes on by ``step`` seconds each time it is read."""
    count = itertools.count()
    return lambda: step * next(count)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "qwen3_5"])
def test_every_row_count_at_three_contexts(family: str) -> None:
    ladder = meter(family).ladder()
    assert ladder.contexts == (4, 40, 70)
    assert ladder.max_rows == 4
    assert all(ms > 0 for row in ladder.verify for ms in row)
    assert len(ladder.draft) == 3 and all(ms > 0 for ms in ladder.draft)


def test_only_recurrent_caches_replay() -> None:
    assert meter("llama").ladder().replay == ()
    assert len(meter("qwen3_5").ladder().replay) == 3


def test_passes_are_repeated_in_a_new_order_and_the_first_of_each_is_thrown_away() -> None:
    one = meter()
    seen: list[tuple[int, int]] = []
    measured = one._verify

    def verify(bed: object, rows: int) -> float:
        seen.append((bed.length, rows))  # type: ignore[attr-defined]  # the bed's class is private
        return measured(bed, rows)  # type: ignore[arg-type]

    one._verify = verify  # type: ignore[method-assign]
    ladder = one.ladder()
    # The first sweep measures a few row counts only at longer contexts: a slow machine has no time for more.
    assert ladder.notes["repeats"] == [REPEATS, REPEATS - 1, REPEATS - 1]
    assert seen[:4] == [(4, 1), (4, 2), (4, 3), (4, 4)]
    lengths = sorted({length for length, _ in seen})
    assert sorted(seen[4:14]) == [(4, 1), (4, 2), (4, 3), (4, 4), *((n, r) for n in lengths[1:] for r in (1, 2, 4))]
    sweeps = [seen[14 + 12 * n : 26 + 12 * n] for n in range(REPEATS - 1)]
    assert all(sorted(sweep) == sorted(sweeps[0]) for sweep in sweeps)
    assert len({tuple(sweep) for sweep in sweeps}) > 1


def test_a_slow_machine_still_prices_every_row_count_everywhere() -> None:
    ladder = meter(clock=ticking(0.5)).ladder()
    base, *longer = ladder.notes["repeats"]
    assert base >= 3 and longer == [0, 0]
    assert ladder.max_rows == 4 and len(ladder.verify) == 3


def test_progress_reaches_the_end() -> None:
    reports: list[tuple[int, int]] = []
    meter(progress=lambda done, total: reports.append((done, total))).ladder()
    assert reports[-1][0] == reports[-1][1]
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "qwen3_5"])
@pytest.mark.parametrize("length", [1, 32, 33, 100])
def test_filled_caches_are_real_caches(family: str, length: int) -> None:
    target = tiny_target(family)
    target.set_taps((0,))
    cache, features = filled(target, length)
    assert isinstance(cache, TargetCache) and cache.length == length
    cache.check()
    assert features is not None
    context = filled_context(drafter(), features, length)
    assert context.length == length


def test_contexts_fit_the_model() -> None:
    assert fitting((128, 1024, 4096), 8192, 8) == (128, 1024, 4096)
    short = fitting((128, 1024, 4096), 2048, 8)
    assert len(short) == 3 and short == tuple(sorted(set(short))) and short[-1] + 16 < 2048
    with pytest.raises(ModelLoadError, match="too short"):
        fitting((128, 1024, 4096), 20, 8)


def test_few_noisy_passes_lift_the_curve_by_a_line() -> None:
    base = [10.0, 11.0, 15.0, 16.0]
    higher = {1: 12.0, 2: 14.0, 3: 19.0, 4: 21.0}
    assert lifted(base, higher) == pytest.approx(list(higher.values()))
    assert lifted(base, {1: 12.0, 4: 21.0}) == pytest.approx(list(higher.values()))
    # Noise below the shorter context's curve is not believed.
    assert lifted(base, {1: 9.0, 2: 8.0, 3: 10.0, 4: 9.0}) == base
