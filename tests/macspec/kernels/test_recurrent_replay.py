"""recurrent_replay: the state after any number of accepted rows, bit-equal to stepping."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_ops

from macspec.kernels.source import load


def inputs(dtype, state_dtype, rows=5, key_heads=2, value_heads=4, key_dim=64, value_dim=12):
    mx.random.seed(rows + key_dim)
    k = (mx.random.normal((1, rows, key_heads, key_dim)) * 0.2).astype(dtype)
    v = mx.random.normal((1, rows, value_heads, value_dim)).astype(dtype)
    g, beta = (mx.random.uniform(0.4, 1, (1, rows, value_heads)) for _ in range(2))
    return k, v, g, beta.astype(dtype), mx.random.normal((1, value_heads, value_dim, key_dim)).astype(state_dtype)


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "key_dim"),
    [(mx.float32, mx.float32, 64), (mx.bfloat16, mx.float32, 128), (mx.bfloat16, mx.bfloat16, 32)],
)
def test_equals_stepping_bit_for_bit_and_the_ops_closely(kernels, every_schedule, dtype, state_dtype, key_dim):
    k, v, g, beta, state = inputs(dtype, state_dtype, key_dim=key_dim)
    stepped, bound = state, 1e-5 if state_dtype == mx.float32 else 0.1
    for accepted in range(6):
        every_schedule(lambda accepted=accepted: kernels.recurrent_replay(k, v, g, beta, state, accepted))
        new = kernels.recurrent_replay(k, v, g, beta, state, accepted)
        assert mx.array_equal(new, stepped), accepted
        if accepted:
            zeros, rows = mx.zeros(k[:, :accepted].shape), slice(0, accepted)
            f32 = [a[:, rows].astype(mx.float32) for a in (k, v, g, beta)]
            _, expected = gated_delta_ops(zeros, *f32, state.astype(mx.float32))
            assert np.abs(np.array(new.astype(mx.float32)) - np.array(expected)).max() < bound
        if accepted < 5:
            one = slice(accepted, accepted + 1)
            stepped = kernels.recurrent_replay(k[:, one], v[:, one], g[:, one], beta[:, one], stepped, 1)


def test_state_is_read_and_written_once(kernels):
    k, v, g, beta, state = inputs(mx.float32, mx.float32)
    kernels.recurrent_replay(k, v, g, beta, state, mx.array([4], mx.int32))
    traffic = kernels.built(load("recurrent_replay")).report.buffers
    assert traffic["state"].read == traffic["state"].size == traffic["new_state"].written


def test_refuses_odd_key_dimensions(kernels):
    k, v, g, beta, state = inputs(mx.float32, mx.float32, key_dim=48)
    with pytest.raises(ValueError, match="divisible by 32"):
        kernels.recurrent_replay(k, v, g, beta, state, 1)
