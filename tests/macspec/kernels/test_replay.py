"""Keeping part of a verified block of a recurrent model without running the model again."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from macspec.engine.caches import TargetCache
from macspec.kernels.ops import RoundOps
from macspec.kernels.replay import RecordedDelta, record_passes
from tiny_models import tiny_model

FAMILIES = ("qwen3_5", "qwen3_next", "qwen3_5_moe")


def build(family: str):
    model, _ = tiny_model(family, seed=2)
    model.eval()
    return model, TargetCache(make_prompt_cache(model)), mx.random.randint(0, 128, (1, 20), key=mx.random.key(5))


def run_again(rows: int) -> None:
    pytest.fail(f"the model ran {rows} rows again")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recorded_layer_computes_what_the_original_does(family):
    model, cache, tokens = build(family)
    plain = [model(tokens[:, a:b], cache=cache.layers) for a, b in ((0, 6), (6, 11), (11, 12))]
    record_passes(model, RoundOps())
    assert sum(isinstance(module, RecordedDelta) for _, module in model.named_modules()) == 3
    again = TargetCache(make_prompt_cache(model))
    recorded = [model(tokens[:, a:b], cache=again.layers) for a, b in ((0, 6), (6, 11), (11, 12))]
    assert all(mx.array_equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert all(mx.array_equal(a, b) for a, b in zip(cache.arrays(), again.arrays(), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("accepted", [0, 1, 3, 5])
def test_partial_acceptance_equals_a_fresh_prefill(family, accepted):
    model, cache, tokens = build(family)
    record_passes(model, RoundOps())
    with cache.append(6):
        model(tokens[:, :6], cache=cache.layers)
    for start in (6, 6 + accepted):  # twice: the second block starts from what the first left
        cache.begin(5)
        model(tokens[:, start : start + 5], cache=cache.layers)
        cache.commit(accepted, run_again)
        cache.check()
    fresh = TargetCache(make_prompt_cache(model))
    with fresh.append(6 + 2 * accepted):
        model(tokens[:, : 6 + 2 * accepted], cache=fresh.layers)
    following = tokens[:, 16:19]
    found, expected = (model(following, cache=c.layers) for c in (cache, fresh))
    assert mx.abs(found - expected).max() < 1e-4
    assert cache.replayed_rows == 0


def test_a_record_is_good_for_one_transaction_only():
    model, cache, tokens = build("qwen3_5")
    record_passes(model, RoundOps())
    cache.begin(4)
    model(tokens[:, :4], cache=cache.layers)
    assert any(getattr(layer, "record", None) is not None for layer in cache.layers)
    cache.commit(4)
    assert all(getattr(layer, "record", None) is None for layer in cache.layers)
    again: list[int] = []
    cache.begin(3)
    for row in range(4, 7):  # single rows leave no record, so the model has to run again
        model(tokens[:, row : row + 1], cache=cache.layers)

    def replay(rows: int) -> None:
        again.append(rows)
        model(tokens[:, 4 : 4 + rows], cache=cache.layers)

    cache.commit(2, replay)
    assert again == [2] and cache.length == 6


def test_a_second_engine_takes_over_the_records():
    model, _, _ = build("qwen3_5")
    first, second = RoundOps(), RoundOps()
    record_passes(model, first)
    record_passes(model, second)
    recorded = [module for _, module in model.named_modules() if isinstance(module, RecordedDelta)]
    assert len(recorded) == 3 and all(module.ops is second for module in recorded)


def test_clearing_leaves_the_caches_as_they_were_made():
    for family in ("qwen3", "qwen3_5", "gemma3_text"):
        model, cache, tokens = build(family)
        with cache.append(9):
            model(tokens[:, :9], cache=cache.layers)
        cache.begin(2)
        model(tokens[:, 9:11], cache=cache.layers)
        cache.clear()
        cache.check()
        assert cache.length == 0 and cache.arrays() == []
        fresh = TargetCache(make_prompt_cache(model))
        for one in (cache, fresh):
            with one.append(7):
                model(tokens[:, :7], cache=one.layers)
        assert all(mx.array_equal(a, b) for a, b in zip(cache.arrays(), fresh.arrays(), strict=True))
