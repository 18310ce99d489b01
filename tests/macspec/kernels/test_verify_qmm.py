"""verify_qmm and verify_moe_qmm: right, row-count-invariant, and one read of the weights."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from macspec.kernels.calls import AFFINE_BITS, FP_FORMATS, GROUP_SIZES
from macspec.kernels.source import load

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
#: Half a unit in the last place, relative, of the output type.
ROUNDING = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
ALL = list(itertools.product(AFFINE_BITS, GROUP_SIZES, DTYPES))


def f64(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32)).astype(np.float64)


def weights(shape, bits, group, dtype, seed=0):
    mx.random.seed(seed)
    packed = mx.quantize(mx.random.normal(shape).astype(dtype), group_size=group, bits=bits)
    q, s, b = packed
    return packed, f64(mx.dequantize(q, s.astype(mx.float32), b.astype(mx.float32), group_size=group, bits=bits))


def check(y: mx.array, x: np.ndarray, w: np.ndarray, dtype: mx.Dtype) -> None:
    exact, size = x @ w.T, np.abs(x) @ np.abs(w).T
    assert (np.abs(f64(y) - exact) <= 2.0**-20 * size + 2 * ROUNDING[dtype] * np.abs(exact) + 1e-30).all()


KERNELS = pytest.mark.parametrize("name", ["verify_qmm", "verify_qmm_matrix"])


def one(kernels, every_schedule, name, bits, group, dtype, rows, columns, width):
    call = getattr(kernels, name)
    packed, w = weights((columns, width), bits, group, dtype)
    x = (mx.random.normal((rows, width)) * 2).astype(dtype)
    every_schedule(lambda: call(x, *packed, group_size=group, bits=bits))
    check(call(x, *packed, group_size=group, bits=bits), f64(x), w, dtype)
    traffic = kernels.built(load(name)).report.buffers
    assert traffic["w"].read == traffic["w"].read_distinct == traffic["w"].size
    assert traffic["scales"].read_distinct == traffic["scales"].size


@KERNELS
@pytest.mark.parametrize(("bits", "group", "dtype"), ALL)
def test_equals_float64_and_reads_weights_once(kernels, every_schedule, name, bits, group, dtype):
    one(kernels, every_schedule, name, bits, group, dtype, rows=16, columns=21, width=group * 9)


@KERNELS
@pytest.mark.parametrize(
    ("rows", "columns", "width"), [(1, 1, 64), (2, 9, 2112), (3, 8, 1024), (7, 1, 4160), (12, 16, 64), (16, 130, 128)]
)
def test_odd_shapes(kernels, every_schedule, name, rows, columns, width):
    one(kernels, every_schedule, name, 4, 64, mx.bfloat16, rows, columns, width)


@KERNELS
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_read_once_and_bits_do_not_depend_on_rows_or_place(kernels, name, dtype):
    call = getattr(kernels, name)
    packed, w = weights((12, 320), 4, 64, dtype, seed=3)
    x = mx.random.normal((16, 320)).astype(dtype)
    alone = mx.concatenate([call(x[r : r + 1], *packed, group_size=64, bits=4) for r in range(16)])
    check(alone, f64(x), w, dtype)
    for rows in range(1, 17):
        for first in {0, 16 - rows}:
            y = call(x[first : first + rows], *packed, group_size=64, bits=4)
            assert mx.array_equal(y, alone[first : first + rows]), (rows, first)
            traffic = kernels.built(load(name)).report.buffers["w"]
            assert traffic.read == traffic.size
    order = mx.array([5, 0, 11, 3])
    assert mx.array_equal(call(x[order], *packed, group_size=64, bits=4), alone[order])


@KERNELS
@pytest.mark.parametrize("bits", [3, 8])
def test_other_formats_are_row_count_invariant_too(kernels, name, bits):
    call = getattr(kernels, name)
    packed, _ = weights((9, 320), bits, 32, mx.bfloat16, seed=4)
    x = mx.random.normal((6, 320)).astype(mx.bfloat16)
    whole = call(x, *packed, group_size=32, bits=bits)
    for r in (0, 5):
        assert mx.array_equal(call(x[r : r + 1], *packed, group_size=32, bits=bits), whole[r : r + 1])


@KERNELS
def test_rows_beyond_the_count_are_not_computed(kernels, name):
    call = getattr(kernels, name)
    packed, _ = weights((16, 256), 4, 64, mx.float32, seed=5)
    x = mx.random.normal((16, 256))
    whole = call(x, *packed, group_size=64, bits=4)
    full = kernels.built(load(name)).report
    for count in (0, 3, 16, 100):
        y = call(x, *packed, group_size=64, bits=4, rows=mx.array([count], mx.int32))
        kept = min(count, 16)
        assert mx.array_equal(y[:kept], whole[:kept]) and not np.array(y[kept:]).any()
        part = kernels.built(load(name)).report
        assert part.buffers["x"].read == full.buffers["x"].read * kept // 16
        if full.flops and kept < 16:
            assert part.flops < full.flops


def test_refuses_what_it_cannot_do(kernels):
    packed, _ = weights((8, 128), 4, 64, mx.float32)
    with pytest.raises(ValueError, match="groups of 16"):
        kernels.verify_qmm(mx.zeros((1, 128)), *packed, group_size=16, bits=4)
    with pytest.raises(ValueError, match=r"\(mxfp4\)"):
        kernels.verify_qmm(mx.zeros((1, 128)), *packed[:2], group_size=64, bits=4, mode="mxfp4")
    with pytest.raises(ValueError, match=r"\(affine\)"):
        kernels.verify_qmm(mx.zeros((1, 128)), *packed[:2], group_size=64, bits=4)
    with pytest.raises(ValueError, match="width 64"):
        kernels.verify_qmm(mx.zeros((1, 64)), *packed, group_size=64, bits=4)
    with pytest.raises(ValueError, match="at most 16"):
        kernels.verify_qmm(mx.zeros((17, 128)), *packed, group_size=64, bits=4)


def test_a_rows_bits_are_those_of_the_others_for_every_row_count_of_experts(kernels):
    """Rows 1 to 16, columns that end a tile early, one expert for all rows and one for each."""
    packed, w = weights((17, 1, 64), 4, 32, mx.float16, seed=8)
    x = mx.random.normal((16, 64)).astype(mx.float16)
    for ids in (mx.full((16, 1), 5, mx.uint32), mx.arange(16).astype(mx.uint32)[:, None]):
        whole = kernels.verify_moe_qmm(x, ids, *packed, group_size=32, bits=4)
        exact, size = moe_reference(f64(x), ids, w), moe_reference(np.abs(f64(x)), ids, np.abs(w))
        assert (np.abs(f64(whole) - exact) <= 2.0**-20 * size + 2 * ROUNDING[mx.float16] * np.abs(exact)).all()
        for rows in range(1, 17):
            part = kernels.verify_moe_qmm(x[:rows], ids[:rows], *packed, group_size=32, bits=4)
            assert mx.array_equal(part, whole[:rows]), rows


@pytest.mark.parametrize("per_slot", [False, True])
@pytest.mark.parametrize(("bits", "group", "dtype"), ALL)
def test_experts_in_every_affine_format(kernels, every_schedule, bits, group, dtype, per_slot):
    moe(kernels, every_schedule, bits, dtype, 3, 5, 2, per_slot, columns=9, width=group * 3, group=group)


FORMATS = pytest.mark.parametrize("mode", list(FP_FORMATS))


def fp_weights(shape, mode, seed=0):
    """Packed weights that use every code and a wide range of scales, and their values in float64."""
    mx.random.seed(seed)
    _, group, bits = FP_FORMATS[mode]
    w = mx.random.normal(shape) * mx.exp(3 * mx.sin(mx.arange(shape[-1])))
    packed = mx.quantize(w, group_size=group, bits=bits, mode=mode)
    form = {"group_size": group, "bits": bits, "mode": mode}
    return packed, form, f64(mx.dequantize(*packed, **form, dtype=mx.float32))


@FORMATS
@KERNELS
@pytest.mark.parametrize("dtype", DTYPES)
def test_floating_point_formats_equal_float64_and_are_read_once(kernels, every_schedule, name, mode, dtype):
    call = getattr(kernels, name)
    packed, form, w = fp_weights((21, 32 * 9), mode)
    x = (mx.random.normal((16, 32 * 9)) * 2).astype(dtype)
    every_schedule(lambda: call(x, *packed, **form))
    whole = call(x, *packed, **form)
    check(whole, f64(x), w, dtype)
    traffic = kernels.built(load(f"{name}_fp")).report.buffers
    assert traffic["w"].read == traffic["w"].read_distinct == traffic["w"].size
    assert traffic["scales"].read_distinct == traffic["scales"].size
    for first, rows in ((0, 1), (3, 1), (15, 1), (5, 7)):
        assert mx.array_equal(call(x[first : first + rows], *packed, **form), whole[first : first + rows])
    part = call(x, *packed, **form, rows=mx.array([3], mx.int32))
    assert mx.array_equal(part[:3], whole[:3]) and not np.array(part[3:].astype(mx.float32)).any()


@FORMATS
@KERNELS
@pytest.mark.parametrize(("rows", "columns", "width"), [(1, 1, 32), (2, 9, 2112), (7, 130, 96)])
def test_floating_point_formats_in_odd_shapes(kernels, name, mode, rows, columns, width):
    packed, form, w = fp_weights((columns, width), mode, seed=rows)
    x = mx.random.normal((rows, width))
    check(getattr(kernels, name)(x, *packed, **form), f64(x), w, mx.float32)


def test_every_code_of_every_format_is_read_as_mlx_reads_it(kernels):
    """One weight per column, so that a column of the product is the weight itself; NaN codes left out."""
    for mode, (_, group, bits) in FP_FORMATS.items():
        codes = [c for c in range(1 << bits) if bits == 4 or c & 127 != 127]
        words = mx.zeros((len(codes), group * bits // 32), mx.uint32)
        words[:, 0] = mx.array(codes, mx.uint32)
        for scale in (0x38, 0x01, 0x07, 0x7E) if mode == "nvfp4" else (127, 100, 150, 1):
            scales = mx.full((len(codes), 1), scale, mx.uint8)
            form = {"group_size": group, "bits": bits, "mode": mode}
            expected = mx.dequantize(words, scales, **form, dtype=mx.float32)[:, 0]
            one = (mx.arange(group) == 0).astype(mx.float32)[None]
            assert mx.array_equal(kernels.verify_qmm(one, words, scales, **form)[0], expected), (mode, scale)


def moe_reference(x, ids, w):
    ids = np.array(ids)
    return np.stack(
        [[w[e] @ (x[r] if x.ndim == 2 else x[r, s]) for s, e in enumerate(row)] for r, row in enumerate(ids)]
    )


def moe(kernels, every_schedule, bits, dtype, rows, experts, top_k, per_slot, columns=13, width=192, group=64):
    packed, w = weights((experts, columns, width), bits, group, dtype, seed=rows)
    random = np.random.default_rng(rows)
    ids = mx.array(np.stack([random.permutation(experts)[:top_k] for _ in range(rows)]), mx.uint32)
    x = mx.random.normal((rows, top_k, width) if per_slot else (rows, width)).astype(dtype)
    (y,) = every_schedule(lambda: kernels.verify_moe_qmm(x, ids, *packed, group_size=group, bits=bits))
    exact = moe_reference(f64(x), ids, w)
    size = moe_reference(np.abs(f64(x)), ids, np.abs(w))
    assert (np.abs(y - exact) <= 2.0**-20 * size + 2 * ROUNDING[dtype] * np.abs(exact)).all()
    traffic = kernels.built(load("verify_moe_qmm")).report.buffers["w"]
    assert traffic.read == traffic.read_distinct == traffic.size * len(np.unique(np.array(ids))) // experts
    return packed, x, ids


@pytest.mark.parametrize(
    ("bits", "dtype", "rows", "experts", "top_k", "per_slot"),
    [(4, mx.bfloat16, 8, 6, 2, False), (4, mx.float32, 1, 4, 4, True), (8, mx.float16, 16, 40, 8, True)],
)
def test_experts_equal_float64_and_are_read_once(kernels, every_schedule, bits, dtype, rows, experts, top_k, per_slot):
    moe(kernels, every_schedule, bits, dtype, rows, experts, top_k, per_slot)


@FORMATS
@pytest.mark.parametrize("per_slot", [False, True])
def test_experts_in_floating_point_formats(kernels, every_schedule, mode, per_slot):
    packed, form, w = fp_weights((5, 13, 96), mode)
    ids = mx.array([[0, 4], [1, 0], [2, 4], [4, 1]], mx.uint32)
    x = mx.random.normal((4, 2, 96) if per_slot else (4, 96)).astype(mx.bfloat16)
    (y,) = every_schedule(lambda: kernels.verify_moe_qmm(x, ids, *packed, **form))
    exact, size = moe_reference(f64(x), ids, w), moe_reference(np.abs(f64(x)), ids, np.abs(w))
    assert (np.abs(y - exact) <= 2.0**-20 * size + 2 * ROUNDING[mx.bfloat16] * np.abs(exact)).all()
    traffic = kernels.built(load("verify_moe_qmm_fp")).report.buffers["w"]
    assert traffic.read == traffic.read_distinct == traffic.size * 4 // 5


def test_an_assignments_bits_do_not_depend_on_the_other_rows(kernels, every_schedule):
    packed, x, ids = moe(kernels, every_schedule, 4, mx.bfloat16, 8, 5, 2, False)
    whole = kernels.verify_moe_qmm(x, ids, *packed, group_size=64, bits=4)
    for r in range(8):
        alone = kernels.verify_moe_qmm(x[r : r + 1], ids[r : r + 1], *packed, group_size=64, bits=4)
        assert mx.array_equal(alone[0], whole[r])
    part = kernels.verify_moe_qmm(x, ids, *packed, group_size=64, bits=4, rows=3)
    assert mx.array_equal(part[:3], whole[:3]) and not np.array(part[3:].astype(mx.float32)).any()
