"""The reference ops are what the kernels compute, so either may run."""

import mlx.core as mx
import numpy as np
import pytest
from metalcpu import options

from macspec.kernels import reference


def same(found, expected, tolerance: float = 0.0) -> bool:
    return all(
        a.shape == b.shape and mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max().item() <= tolerance
        for a, b in zip(found, expected, strict=True)
    )


def test_token_ops(kernels):
    logits = mx.random.normal((4, 900), key=mx.random.key(1)) * 3
    assert same(kernels.draft_confidence(logits), reference.draft_confidence(logits), 1e-5)
    for temperature in (0.0, 0.7):
        arguments = (logits, temperature, 77, 5)
        assert same([kernels.keyed_choice(*arguments)], [reference.keyed_choice(*arguments)])
    hopeless = mx.where(mx.arange(900) < 3, logits, -float("inf"))
    assert same(kernels.draft_confidence(hopeless), reference.draft_confidence(hopeless), 1e-5)


def test_accept_prefix(kernels):
    random = np.random.default_rng(3)
    for _ in range(25):
        depth = int(random.integers(0, 7))
        choice = mx.array(random.integers(0, 3, depth + 1), mx.int32)
        draft = mx.array(random.integers(0, 3, max(depth, 1)), mx.int32)
        arguments = (draft, choice, depth, mx.array([int(random.integers(-1, 4)), -1], mx.int32))
        assert same(kernels.accept_prefix(*arguments), reference.accept_prefix(*arguments))


def test_products(kernels):
    packed = mx.quantize(mx.random.normal((5, 12, 64), key=mx.random.key(2)), group_size=32, bits=4)
    x, ids = mx.random.normal((3, 64), key=mx.random.key(3)), mx.array([[0, 4], [1, 0], [2, 3]], mx.uint32)
    for inputs in (x, mx.stack([x, -x], axis=1)):
        arguments, form = (inputs, ids, *packed), {"group_size": 32, "bits": 4}
        assert same([kernels.verify_moe_qmm(*arguments, **form)], [reference.verify_moe_qmm(*arguments, **form)], 1e-4)
    one = [a[0] for a in packed]
    assert same([kernels.verify_qmm(x, *one, **form)], [reference.verify_qmm(x, *one, **form)], 1e-4)


@pytest.mark.parametrize("window", [0, 12])
def test_attention(kernels, window):
    q, k = (mx.random.normal((1, h, n, 64), key=mx.random.key(n)) for h, n in ((4, 3), (2, 90)))
    with options(require_outputs=False):
        found = kernels.verify_attention(q, k, -k, scale=0.2, window=window)
    assert same([found], [reference.verify_attention(q, k, -k, scale=0.2, window=window)], 1e-5)


def test_recurrent_replay(kernels):
    keys = mx.random.split(mx.random.key(6), 5)
    shapes = [(1, 4, 1, 32), (1, 4, 2, 5), (1, 4, 2), (1, 4, 2), (1, 2, 5, 32)]
    arguments = [mx.random.uniform(shape=s, key=n) for s, n in zip(shapes, keys, strict=True)]
    for accepted in (0, 1, 4):
        expected = reference.recurrent_replay(*arguments, accepted)
        assert same([kernels.recurrent_replay(*arguments, accepted)], [expected], 1e-5)
