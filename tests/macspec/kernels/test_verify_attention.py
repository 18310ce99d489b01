"""verify_attention: right over shapes and windows, one read of the cache, bits that do not depend on the row count."""

import mlx.core as mx
import numpy as np
import pytest
from metalcpu import options

from macspec.kernels.calls import Kernels
from macspec.kernels.source import load

BOUNDS = {mx.float32: 3e-6, mx.float16: 3e-3, mx.bfloat16: 2e-2}


def f64(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32)).astype(np.float64)


def reference(q, k, v, window):
    """Float64 attention, [1, M, H, D]."""
    (_, heads, rows, dim), (kv_heads, length) = q.shape, k.shape[1:3]
    key, position = np.arange(length)[None], np.arange(length - rows, length)[:, None]
    seen = (key <= position) & ((window == 0) | (key > position - window))
    scores = np.einsum("bhmd,bhld->bhml", f64(q), np.repeat(f64(k), heads // kv_heads, 1)) * dim**-0.5
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhml,bhld->bmhd", weights, np.repeat(f64(v), heads // kv_heads, 1))


def cache(heads, rows, kv_heads, length, dim, dtype, seed=0, spare=37):
    """Queries, and keys and values as views into larger cache arrays, the way mlx-lm hands them over."""
    mx.random.seed(seed)
    q = mx.random.normal((1, rows, heads, dim)).astype(dtype).transpose(0, 2, 1, 3)
    k, v = (mx.random.normal((1, kv_heads, length + spare, dim)).astype(dtype)[:, :, :length] for _ in range(2))
    return q, k, v


def run(kernels, every_schedule, heads, rows, kv_heads, length, dim, dtype, window=0, split=512):
    q, k, v = cache(heads, rows, kv_heads, length, dim, dtype, seed=length)
    with options(require_outputs=False):  # padded matrix rows have no partial result
        call = {"scale": dim**-0.5, "window": window, "split": split}
        (out,) = every_schedule(lambda: kernels.verify_attention(q, k, v, **call))
    assert np.abs(out - reference(q, k, v, window)).max() <= BOUNDS[dtype]
    report = kernels.built(load("verify_attention")).report
    size = kv_heads * length * dim * dtype.size
    for name in "kv":
        assert report.buffers[name].read <= 1.02 * size
        assert window or report.buffers[name].read == report.buffers[name].read_distinct == size
    assert report.threadgroup_bytes <= 32 * 1024
    return report


CASES = [
    (4, 3, 4, 100, 64, mx.float32, 0),
    (8, 5, 2, 1300, 64, mx.bfloat16, 0),
    (16, 2, 1, 600, 128, mx.bfloat16, 0),  # 16 heads share one key-value head: past stock MLX's limit of 32
    (4, 1, 2, 1, 96, mx.float16, 0),
    (4, 16, 1, 16, 128, mx.float32, 0),  # an empty prefix: the rows see only each other
    (6, 4, 2, 513, 256, mx.bfloat16, 0),
    (2, 2, 2, 512, 96, mx.float32, 0),
    (4, 4, 2, 1500, 128, mx.bfloat16, 70),
    (4, 8, 2, 900, 64, mx.float32, 5),
]


@pytest.mark.parametrize(("heads", "rows", "kv_heads", "length", "dim", "dtype", "window"), CASES)
def test_equals_float64(kernels, every_schedule, heads, rows, kv_heads, length, dim, dtype, window):
    run(kernels, every_schedule, heads, rows, kv_heads, length, dim, dtype, window)


@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_equals_float64_everywhere(kernels, every_schedule, dim, dtype):
    shapes = ((1, 1, 33, 0), (2, 7, 260, 0), (4, 16, 200, 60), (8, 3, 140, 0), (16, 16, 70, 0))
    for group, rows, length, window in shapes:
        run(kernels, every_schedule, 2 * group, rows, 2, length, dim, dtype, window, split=64)


def test_a_long_context(kernels, every_schedule):
    run(kernels, every_schedule, 4, 5, 1, 5000, 64, mx.bfloat16)


def test_every_row_count_from_one_key_on(kernels):
    """Rows 1 to 16 with nothing before them, and with a little."""
    q, k, v = cache(2, 16, 1, 33, 64, mx.float32)
    with options(require_outputs=False):
        for rows in range(1, 17):
            for length in (rows, 33):
                arrays = q[:, :, :rows], k[:, :, :length], v[:, :, :length]
                out = kernels.verify_attention(*arrays, scale=64**-0.5)
                assert np.abs(f64(out) - reference(*arrays, 0)).max() <= BOUNDS[mx.float32], (rows, length)


def quantised(k, v, bits, group):
    """Packed keys and values as slices of larger buffers, as mlx-lm's cache gives them, and their float32 values."""

    def one(a):
        parts = mx.quantize(mx.pad(a, ((0, 0), (0, 0), (0, 19), (0, 0))), group, bits)
        packed = tuple(part[:, :, : a.shape[2]] for part in parts)
        q, scales, biases = (mx.contiguous(part) for part in packed)
        return packed, mx.dequantize(q, scales.astype(mx.float32), biases.astype(mx.float32), group, bits)

    return one(k), one(v)


QUANTISED = [
    (4, 3, 2, 100, 64, mx.float32, 4, 64, 0),
    (16, 2, 1, 530, 128, mx.bfloat16, 8, 64, 0),
    (4, 16, 1, 16, 256, mx.float16, 4, 128, 0),
    (6, 4, 2, 200, 96, mx.bfloat16, 8, 32, 30),
    (2, 1, 2, 1, 64, mx.float32, 8, 32, 0),
]


@pytest.mark.parametrize(("heads", "rows", "kv_heads", "length", "dim", "dtype", "bits", "group", "window"), QUANTISED)
def test_quantised_keys_equal_float64_and_are_read_once(
    kernels, every_schedule, heads, rows, kv_heads, length, dim, dtype, bits, group, window
):
    q, k, v = cache(heads, rows, kv_heads, length, dim, dtype, seed=length)
    (packed_k, k), (packed_v, v) = quantised(k, v, bits, group)
    call = {"scale": dim**-0.5, "window": window, "group_size": group, "bits": bits}
    with options(require_outputs=False):
        (out,) = every_schedule(lambda: kernels.verify_attention_quantised(q, packed_k, packed_v, **call))
    assert np.abs(out - reference(q, k, v, window)).max() <= BOUNDS[dtype]
    report = kernels.built(load("verify_attention_quantised")).report
    for name in "kv":
        read, size = report.buffers[name], kv_heads * length * dim * bits // 8
        assert read.read <= 1.02 * size and (window or read.read == read.read_distinct == size)
        scales = report.buffers[f"{name}_scales"]
        assert window or scales.read_distinct == kv_heads * length * dim // group * dtype.size
    assert report.threadgroup_bytes <= 32 * 1024


def test_a_rows_bits_over_quantised_keys_do_not_depend_on_the_row_count(kernels):
    rows, length = 4, 540
    q, k, v = cache(4, rows, 2, length, 64, mx.bfloat16)
    (k, _), (v, _) = quantised(k, v, 4, 64)
    call = {"scale": 0.125, "group_size": 64, "bits": 4}
    with options(require_outputs=False):
        whole = kernels.verify_attention_quantised(q, k, v, **call)
        for r in range(rows):
            seen = length - rows + r + 1
            k_seen, v_seen = (tuple(part[:, :, :seen] for part in parts) for parts in (k, v))
            alone = kernels.verify_attention_quantised(q[:, :, r : r + 1], k_seen, v_seen, **call)
            assert mx.array_equal(alone[:, 0], whole[:, r]), r
        part = kernels.verify_attention_quantised(q, k, v, **call, rows=mx.array([2], mx.int32))
    assert mx.array_equal(part[:, :2], whole[:, :2]) and not np.array(part[:, 2:].astype(mx.float32)).any()


def test_a_rows_bits_depend_neither_on_the_row_count_nor_on_later_keys(kernels):
    rows, length, dim = 8, 1050, 64
    q, k, v = cache(8, rows, 2, length, dim, mx.bfloat16)
    with options(require_outputs=False):
        whole = kernels.verify_attention(q, k, v, scale=0.125)
        for r in range(rows):
            seen = length - rows + r + 1
            alone = kernels.verify_attention(q[:, :, r : r + 1], k[:, :, :seen], v[:, :, :seen], scale=0.125)
            assert mx.array_equal(alone[:, 0], whole[:, r]), r
        for window in (0, 300):
            whole = kernels.verify_attention(q, k, v, scale=0.125, window=window)
            for first in (3, 5):
                end = length - rows + first + 3
                some = q[:, :, first : first + 3]
                part = kernels.verify_attention(some, k[:, :, :end], v[:, :, :end], scale=0.125, window=window)
                assert mx.array_equal(part, whole[:, first : first + 3])


def test_rows_beyond_the_count_cost_nothing_and_are_zero(kernels):
    q, k, v = cache(8, 8, 2, 700, 64, mx.float32)
    with options(require_outputs=False):
        whole = kernels.verify_attention(q, k, v, scale=0.125)
        all_rows = kernels.built(load("verify_attention")).report
        part = kernels.verify_attention(q, k, v, scale=0.125, rows=mx.array([2], mx.int32))
        few = kernels.built(load("verify_attention")).report
    assert mx.array_equal(part[:, :2], whole[:, :2]) and not np.array(part[:, 2:]).any()
    assert few.buffers["q"].read * 4 == all_rows.buffers["q"].read
    assert few.flops is None or few.flops < all_rows.flops / 3


def test_keys_no_row_can_see_are_not_read(kernels):
    q, k, v = cache(2, 2, 1, 4000, 64, mx.float32)
    with options(require_outputs=False):
        kernels.verify_attention(q, k, v, scale=0.125, window=64)
    assert kernels.built(load("verify_attention")).report.buffers["k"].read <= (64 + 2 + 32) * 64 * 4


def test_huge_scores_do_not_overflow(kernels):
    q, k, v = cache(2, 2, 1, 600, 64, mx.float32)
    with options(require_outputs=False):
        out = kernels.verify_attention(q * 300, k * 300, v, scale=1.0)
    assert np.isfinite(np.array(out)).all()


def test_refuses_what_it_cannot_do(kernels):
    from metalcpu import metal_kernel

    q, k, v = cache(16, 16, 1, 40, 64, mx.float32)
    with pytest.raises(ValueError, match="1024 threads, 512 allowed"):
        Kernels(metal_kernel, max_threads=512).verify_attention(q, k, v, scale=1.0)
    with pytest.raises(ValueError, match="does not take"):
        kernels.verify_attention(q[..., :48], k[..., :48], v[..., :48], scale=1.0)
    with pytest.raises(ValueError, match="does not take"):
        kernels.verify_attention(q, k[:, :, :8], v[:, :, :8], scale=1.0)
    with pytest.raises(ValueError, match="does not take"):
        kernels.verify_attention(q, k, v[:, :, :8], scale=1.0)
    packed = mx.quantize(k, 64, 4)
    with pytest.raises(ValueError, match="keys of 3 bits"):
        kernels.verify_attention_quantised(q, packed, packed, scale=1.0, group_size=64, bits=3)
    with pytest.raises(ValueError, match="keys of 8 bits"):
        kernels.verify_attention_quantised(q, packed, packed, scale=1.0, group_size=64, bits=8)
