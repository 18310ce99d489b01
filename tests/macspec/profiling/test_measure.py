import random
from collections.abc import Callable

import mlx.core as mx
import pytest

from fake_drafters import FakeDrafter
from macspec.engine.caches import TargetCache
from macspec.errors import ModelLoadError
from macspec.profiling.contexts import filled, filled_context
from macspec.profiling.measure import BUDGET_S, REPEATS, Meter, _Bed, fitting, lifted
from tiny_engine import tiny_target


def drafter(depth: int = 3) -> FakeDrafter:
    return FakeDrafter(lambda history, count: [1] * count, max_depth=depth)


def meter(family: str = "llama", *, depth: int = 3, **options: object) -> Meter:
    target = tiny_target(family)
    one = drafter(depth)
    target.set_taps(one.taps)
    return Meter(target, one, contexts=(4, 40, 70), **options)  # type: ignore[arg-type]  # options are keyword arguments


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


def machine(one: Meter, pass_s: Callable[[int, int], float], draft_s: float = 0.0) -> list[tuple[int, int]]:
    """Let passes at a length take ``pass_s(length, rows)`` seconds by the meter's clock; gets what was measured."""
    seen: list[tuple[int, int]] = []
    now = [0.0]
    one._clock = lambda: now[0]

    def verify(bed: _Bed, rows: int) -> float:
        seen.append((bed.length, rows))
        now[0] += (taken := pass_s(bed.length, rows))
        return 1000.0 * taken

    def draft(bed: _Bed) -> float:
        now[0] += draft_s
        return 1000.0 * draft_s

    one._verify, one._draft = verify, draft  # type: ignore[method-assign]
    return seen


def uneven(seconds: float) -> Callable[[int, int], float]:
    """Times that never agree."""
    noise = random.Random(0)
    return lambda length, rows: seconds * noise.uniform(0.9, 1.1)


def test_passes_are_repeated_in_a_new_order() -> None:
    one = meter()
    seen = machine(one, uneven(0.001))
    assert one.ladder().notes["repeats"] == [REPEATS + 1, REPEATS - 1, REPEATS - 1]
    assert seen[:4] == [(4, 1), (4, 2), (4, 3), (4, 4)]
    # The second sweep measures a few row counts only at longer contexts: a slow machine has no time for more.
    few = [(length, rows) for length in (40, 70) for rows in (1, 2, 4)]
    assert sorted(seen[4:14]) == [(4, 1), (4, 2), (4, 3), (4, 4), *few]
    sweeps = [seen[14 + 12 * n : 26 + 12 * n] for n in range(REPEATS - 1)]
    assert all(sorted(sweep) == sorted(sweeps[0]) for sweep in sweeps)
    assert len({tuple(sweep) for sweep in sweeps}) > 1


def test_a_row_count_whose_times_agree_is_measured_no_more() -> None:
    one = meter()
    noise = uneven(0.001)
    seen = machine(one, lambda length, rows: noise(length, rows) if rows == 3 else 0.001)
    one.ladder()
    assert [seen.count((4, rows)) for rows in (1, 2, 3, 4)] == [3, 3, REPEATS + 1, 3]


def test_a_first_pass_that_compiled_a_kernel_does_not_count() -> None:
    one = meter()
    met: set[tuple[int, int]] = set()

    def pass_s(length: int, rows: int) -> float:
        first = (length, rows) not in met
        met.add((length, rows))
        return 0.5 if first and rows == 2 else 0.01 * rows

    machine(one, pass_s)
    assert one.ladder().verify[0] == pytest.approx([10.0, 20.0, 30.0, 40.0])


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_a_slow_machine_still_prices_every_row_count_everywhere_within_its_budget(slower: float) -> None:
    """Passes of 90 to 160 ms, more at long contexts, as the embedded pair's are on two old cores."""
    one = meter(depth=7)
    noise = uneven(1.0)
    machine(one, lambda length, rows: slower * (0.06 + 0.007 * rows + length / 700) * noise(0, 0), slower * 0.015)
    ladder = one.ladder()
    assert ladder.notes["seconds"] <= BUDGET_S + 0.1
    base, *longer = ladder.notes["repeats"]
    assert base >= 2 and longer == [0, 0]
    assert ladder.max_rows == 8 and len(ladder.verify) == 3
    assert all(high >= low for low, high in zip(ladder.verify[0], ladder.verify[2], strict=True))


def test_two_passes_of_every_row_count_are_made_whatever_they_take() -> None:
    one = meter()
    machine(one, lambda length, rows: 3.0)
    assert one.ladder().notes["repeats"] == [2, 0, 0]


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


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "qwen3_5"])
def test_a_seed_is_repeated_and_stays_as_it_is(family: str) -> None:
    target = tiny_target(family)
    target.set_taps((0,))
    seed = filled(target, 32)
    for length in (32, 33, 100):
        cache, features = filled(target, length, seed)
        assert cache.length == length and features is seed[1]
        cache.check()
        with cache.append():
            target.forward(mx.array([[1, 2]]), cache.layers)
    assert seed[0].length == 32
    seed[0].check()


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
