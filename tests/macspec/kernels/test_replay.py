"""Keeping part of a verified block of a recurrent model without running the model again."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from macspec.engine.caches import TargetCache
from macspec.kernels.mixers import RecordedMixer
from macspec.kernels.ops import RoundOps
from macspec.kernels.replay import RecordedDelta, record_passes
from tiny_models import parameters, tiny_model

#: Families with recurrent layers, and how many of them record their passes.
FAMILIES = {
    "qwen3_5": 3,
    "qwen3_next": 3,
    "qwen3_5_moe": 3,
    "falcon_h1": 2,
    "granitemoehybrid": 2,
    "jamba": 2,
    "kimi_linear": 2,
    "lfm2": 2,
    "lfm2_moe": 2,
    "mamba": 2,
    "mamba2": 3,
    "nemotron_h": 2,
    "recurrent_gemma": 2,
    # Two modules of each of its layers update one cache.
    "rwkv7": 6,
}


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
    for _ in range(2):  # as by a second engine over the same model
        record_passes(model, RoundOps())
    recorders = [m for _, m in model.named_modules() if isinstance(m, RecordedDelta | RecordedMixer)]
    assert len(recorders) == FAMILIES[family]
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_keeps_what_running_the_rows_again_would(family):
    """Bit by bit in all but the families whose other layers compute few rows in another order than many."""
    model, cache, tokens = build(family)
    with cache.append(6):
        model(tokens[:, :6], cache=cache.layers)
    recorded = cache.fork()

    def pass_over(held: TargetCache, replay) -> None:
        held.begin(7)
        model(tokens[:, 6:13], cache=held.layers)
        held.commit(4, replay)

    pass_over(cache, lambda rows: model(tokens[:, 6 : 6 + rows], cache=cache.layers))
    assert cache.replayed_rows == 4
    for _ in range(2):  # as by a second engine over the same model
        record_passes(model, RoundOps())
    pass_over(recorded, run_again)
    for again, kept in zip(cache.export(), recorded.export(), strict=True):
        for a, b in zip(again, kept, strict=True):
            assert mx.abs(a - b).max() < 1e-5 if isinstance(a, mx.array) else a == b


def test_nothing_of_a_pass_is_kept_beyond_its_transaction():
    """A projection's output for a chunk of the prompt is megabytes per layer."""
    model, cache, tokens = build("falcon_h1")
    record_passes(model, RoundOps())
    mixers = [module for _, module in model.named_modules() if isinstance(module, RecordedMixer)]
    for rows in (20, 5):
        cache.begin(rows)
        model(tokens[:, :rows], cache=cache.layers)
        cache.commit(rows - 1 if rows == 5 else rows, run_again)
        assert all(output is None for mixer in mixers for output in mixer._projections.take())
    assert all(getattr(layer[0], "record", None) is None for layer in cache.layers)


def test_parameters_of_a_recording_model_are_the_same_arrays():
    model, _, _ = build("rwkv7")
    before = {id(array) for _, array in parameters(model)}
    record_passes(model, RoundOps())
    record_passes(model, RoundOps())
    after = [id(array) for _, array in parameters(model)]
    assert set(after) == before and len(after) == len(before)


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
