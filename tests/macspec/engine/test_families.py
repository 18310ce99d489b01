"""Caches of every family's real mlx-lm class survive rollbacks; generation with speculation equals plain generation."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from families import FORMATS, measure, quantized_target
from macspec.engine.caches import TargetCache, quantize_layers
from tiny_engine import tiny_target
from tiny_models import FAMILIES, parameters, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_rollbacks_leave_what_a_fresh_prefill_gives(family: str) -> None:
    model, _ = tiny_model(family)
    assert sum(array.nbytes for _, array in parameters(model)) <= 300_000
    tokens = mx.array(np.random.default_rng(0).integers(0, 128, (1, 60)))
    cache = TargetCache(make_prompt_cache(model))
    with cache.append(20):
        model(tokens[:, :20], cache=cache.layers)
    for accepted in (3, 8, 0, 5, 1):
        start = cache.length
        cache.begin(8)
        model(tokens[:, start : start + 8], cache=cache.layers)
        cache.commit(accepted, lambda rows, at=start: model(tokens[:, at : at + rows], cache=cache.layers))
        cache.check()
    assert cache.replayed_rows == (9 if cache.recurrent else 0)
    end = cache.length
    assert end == 37
    after = model(tokens[:, end : end + 3], cache=cache.layers)
    fresh = model(tokens[:, : end + 3], cache=make_prompt_cache(model))[:, end:]
    np.testing.assert_allclose(np.array(after), np.array(fresh), atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_kv_rolls_back_to_the_same_numbers(bits: int) -> None:
    model, _ = tiny_model("llama", head_dim=64)
    tokens = mx.array(np.random.default_rng(0).integers(0, 128, (1, 40)))

    def new_cache() -> TargetCache:
        return TargetCache(quantize_layers(make_prompt_cache(model), bits))

    cache, fresh = new_cache(), new_cache()
    with cache.append():
        model(tokens[:, :20], cache=cache.layers)
    cache.begin(8)
    model(mx.full((1, 8), 7), cache=cache.layers)
    cache.commit(0)
    model(tokens[:, :20], cache=fresh.layers)
    after, expected = (model(tokens[:, 20:23], cache=c.layers) for c in (cache, fresh))
    np.testing.assert_allclose(np.array(after), np.array(expected), atol=1e-5)
    plain = model(tokens[:, :23], cache=make_prompt_cache(model))[:, 20:]
    assert float(mx.abs(after - plain).max()) > 1e-4, "the cache should really be quantised"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_is_exact(family: str) -> None:
    result = measure(tiny_target(family), 300)
    assert result.difference is None


@pytest.mark.parametrize("family", ["lfm2", "falcon_h1", "recurrent_gemma", "rwkv7"])
def test_a_short_answer_is_exact_with_recurrent_layers(family: str) -> None:
    result = measure(tiny_target(family), 12)
    assert result.difference is None and "records" in result.rollback


@pytest.mark.parametrize("form", FORMATS)
def test_speculation_is_exact_on_quantised_weights(form: str) -> None:
    result = measure(quantized_target("qwen3", form), 24)
    assert result.difference is None
