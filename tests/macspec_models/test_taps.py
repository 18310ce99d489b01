"""Taps read what a layer puts out, on one instance only."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from macspec_models.errors import CheckpointError
from macspec_models.taps import Taps
from tiny_engine import tiny_target

TOKENS = mx.array([[3, 1, 4, 1, 5, 9]])


def hidden_states(target):
    """Outputs of every layer, by walking the layers by hand."""
    x, found = target.model.model.embed_tokens(TOKENS), []
    for layer in target.model.model.layers:
        x = layer(x, "causal", cache=None)
        found.append(np.array(x[0]))
    return found


def test_features_are_layer_outputs_in_ascending_order():
    target = tiny_target("llama")
    expected = hidden_states(target)
    target.set_taps((2, 0))
    target.forward(TOKENS, target.make_cache())
    np.testing.assert_allclose(
        np.array(target.features()), np.concatenate([expected[0], expected[2]], axis=-1), rtol=1e-5, atol=1e-5
    )


def test_an_off_by_one_tap_would_be_seen():
    target = tiny_target("llama")
    expected = hidden_states(target)
    assert not np.allclose(expected[0], expected[1], atol=1e-3)


def test_logits_do_not_change_and_taps_come_off():
    target = tiny_target("qwen3")
    before = np.array(target.forward(TOKENS, target.make_cache()))
    target.set_taps((1,))
    np.testing.assert_array_equal(before, np.array(target.forward(TOKENS, target.make_cache())))
    target.set_taps(())
    assert target.features() is None
    np.testing.assert_array_equal(before, np.array(target.forward(TOKENS, target.make_cache())))


def test_another_instance_is_untouched():
    one, other = tiny_target("llama"), tiny_target("llama")
    one.set_taps((0,))
    other.forward(TOKENS, other.make_cache())
    assert other.features() is None


def test_weights_keep_their_number():
    target = tiny_target("llama")
    size = target.nbytes
    target.set_taps((0, 1))
    target.forward(TOKENS, target.make_cache())
    assert target.nbytes == size


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(CheckpointError, match="reads target layer 7, but this target has 3 layers"):
        tiny_target("llama").set_taps((1, 7))


def test_layers_start_early_and_bare_lifts_every_stand_in(monkeypatch):
    target = tiny_target("llama")
    own = list(target.model.model.layers)
    assert [type(layer).__name__ for layer in own].count("Tap") == 1  # One of every four starts early.
    target.set_taps((1,))
    with target.bare():
        assert all(type(layer).__name__ != "Tap" for layer in target.model.model.layers)
    started = []
    monkeypatch.setattr("macspec_models.taps.mx.async_eval", started.append)
    target.forward(TOKENS, target.make_cache())
    assert len(started) == 1
    assert target.features().shape == (TOKENS.shape[1], target.hidden_size)


def test_the_last_layer_is_never_started_early():
    layers = [nn.Identity() for _ in range(5)]
    Taps(layers, (), stride=2)
    assert [type(layer).__name__ for layer in layers] == ["Tap", "Identity", "Tap", "Identity", "Identity"]
