"""What the executor computes, counts and catches."""

import mlx.core as mx
import numpy as np
import pytest
from metalcpu import CompileError, KernelFault, collect, metal_kernel, options
from metalcpu.build import COUNTS_FLOPS
from metalcpu.translate import mark_threadgroup

HEAD = "uint i = thread_position_in_grid.x;\n"  # the first line of most sources
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def run(
    source: str, a: mx.array | None = None, *, header: str = "", size: int = 64, dtype: mx.Dtype = mx.float32, **extra
):
    a = mx.arange(64).astype(mx.float32) if a is None else a
    kernel = metal_kernel(
        "k",
        ["a"],
        ["o"],
        source,
        header,
        **{n: extra.pop(n) for n in list(extra) if n in ("ensure_row_contiguous", "atomic_outputs")},
    )
    call = {"grid": (64, 1, 1), "threadgroup": (64, 1, 1)} | extra
    (o,) = kernel(inputs=[a], output_shapes=[(size,)], output_dtypes=[dtype], **call)
    return o, kernel.report


def test_computes_and_counts():
    o, report = run(HEAD + "o[i] = 2 * a[i] + a[0];")
    assert o.tolist() == [2 * i for i in range(64)]
    traffic = report.buffers["a"]
    assert (traffic.read, traffic.read_distinct, traffic.size) == (512, 256, 256)
    assert (report.threads, report.bytes_written, report.buffers["o"].written_distinct) == (64, 256, 256)
    if COUNTS_FLOPS:
        assert report.flops == 128


def test_transcendentals_are_counted_apart():
    if not COUNTS_FLOPS:
        pytest.skip("arithmetic is counted on x86-64 only")
    _, report = run(HEAD + "o[i] = metal::exp(a[i] * -0.01f) + metal::fma(a[i], 2.0f, 1.0f);")
    assert report.specials == 64 and report.flops == 64 * 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (HEAD + "o[i + 1] = a[i];", "k.metal:2.*out-of-bounds write of 'o'"),
        (HEAD + "o[i] = a[i + 1];", "k.metal:2.*out-of-bounds read of 'a'"),
        (HEAD + "o[i] = a[int(i) - 1];", "out-of-bounds read near 'a'"),
        (HEAD + "o[i] = a[i + 100000000];", "wild read"),
        (HEAD + "o[i] = a_shape[i];", "out-of-bounds read of 'a_shape'"),
        (HEAD + "((device float*)a)[i] = 1; o[i] = 0;", "write to input 'a'"),
        (HEAD + "o[i / 2] = a[i];", "race in output 'o'"),
        (HEAD + "o[i] = o[i] + a[i];", "uninitialised read of output 'o'"),
        (HEAD + "if (i < 32) " + BARRIER + " o[i] = a[i];", "thread 32 ended while others wait"),
        (HEAD + f"if (i < 32) {{ {BARRIER} }} else {{ {BARRIER} }} o[i] = a[i];", "different barriers"),
        (
            "threadgroup float b[64]; " + HEAD + f"b[i] = a[i]; b[63 - i] = 1; {BARRIER} o[i] = b[i];",
            "race in threadgroup",
        ),
        (
            "threadgroup float b[64]; " + HEAD + f"if (i) b[i] = a[i]; {BARRIER} o[i] = b[i];",
            "uninitialised read of threadgroup",
        ),
        (
            "threadgroup float b[64]; "
            + HEAD
            + "b[i] = a[i]; threadgroup_barrier(mem_flags::mem_device); o[i] = b[63 - i];",
            "race in threadgroup",
        ),
        (
            "threadgroup float b[64]; " + HEAD + f"b[i] = a[i]; {BARRIER} o[i] = b[i + 1];",
            "threadgroup memory|outside an array",
        ),
        (HEAD + "float z[4] = {1, 2, 3, 4}; o[i] = z[i % 5];", "index outside an array"),
        (HEAD + "o[i] = float(1u << (i % 40));", "shift by an amount"),
        (HEAD + "o[i] = *(const device float*)((const device uint8_t*)a + 1);", "misaligned read"),
    ],
)
def test_faults(source, message):
    with pytest.raises(KernelFault, match=message):
        run(source)


def test_missing_barrier_is_a_race_in_every_schedule_and_a_barrier_cures_it():
    source = "threadgroup float b[64]; " + HEAD + "b[i] = 0; " + BARRIER + " b[i] = a[i]; {} o[i] = b[63 - i];"
    for schedule in (0, 1, 7):
        with options(schedule=schedule):
            with pytest.raises(KernelFault, match="race"):
                run(source.replace("{}", ""))
            assert run(source.replace("{}", BARRIER))[0][0] == 63


def test_simdgroup_barrier_orders_its_own_lanes_only():
    source = (
        "threadgroup float b[64]; " + HEAD + "b[i] = a[i]; simdgroup_barrier(mem_flags::mem_threadgroup); o[i] = b[{}];"
    )
    assert run(source.replace("{}", "i ^ 1"))[0][0] == 1
    with pytest.raises(KernelFault, match="race"):
        with options(schedule=1):
            run(source.replace("{}", "63 - i"))


def test_divergent_simdgroup_operation_is_counted_or_refused():
    source = HEAD + "float r = 0; if (i % 2 == 0) r = simd_sum(1.0f); o[i] = r;"
    o, report = run(source)
    assert o[0] == 16 and report.divergent == 2
    with options(strict=True), pytest.raises(KernelFault, match="16 of 32 lanes"):
        run(source)


def test_simdgroup_operations():
    lanes = np.arange(64) % 32
    cases = {
        "simd_sum(a[i])": np.repeat([496, 496 + 1024], 32),
        "simd_shuffle_xor(a[i], 3)": np.arange(64) ^ 3,
        "simd_shuffle_down(a[i], 1)": np.where(lanes < 31, np.arange(64) + 1, np.arange(64)),
        "simd_prefix_inclusive_sum(1.0f)": lanes + 1,
        "simd_broadcast(a[i], 5)": np.arange(64) // 32 * 32 + 5,
        "float((simd_vote::vote_t)simd_ballot(i % 32 < 3))": np.full(64, 7),
        "float(simd_min(uint(i)))": np.arange(64) // 32 * 32,
    }
    for expression, expected in cases.items():
        o, _ = run(HEAD + f"o[i] = {expression};")
        assert np.array_equal(np.array(o), expected), expression


def test_simd_sum_has_no_fixed_order():
    a = mx.random.normal((64,), key=mx.random.key(0))
    sums = []
    for schedule in (0, 1, 5):
        with options(schedule=schedule):
            sums.append(run(HEAD + "o[i] = simd_sum(a[i]);", a)[0][0].item())
    assert len(set(sums)) > 1 and max(sums) - min(sums) < 1e-5


def test_simdgroup_matrix():
    a, b = (mx.random.normal((16, 16), key=mx.random.key(k)) for k in (1, 2))
    source = """
      uint x = threadgroup_position_in_grid.x, y = threadgroup_position_in_grid.y;
      simdgroup_matrix<float, 8, 8> c(0.0f), l, r;
      for (int k = 0; k < 16; k += 8) {
        simdgroup_load(l, a + y * 8 * 16 + k, 16); simdgroup_load(r, b + k * 16 + x * 8, 16);
        simdgroup_multiply_accumulate(c, l, r, c);
      }
      simdgroup_store(c, o + y * 8 * 16 + x * 8, 16);"""
    kernel = metal_kernel("mma", ["a", "b"], ["o"], source)
    (o,) = kernel(
        inputs=[a, b], grid=(64, 2, 1), threadgroup=(32, 1, 1), output_shapes=[(16, 16)], output_dtypes=[mx.float32]
    )
    assert mx.allclose(o, a @ b, atol=1e-5)
    if COUNTS_FLOPS:
        assert kernel.report.flops == 2 * 16**3


def test_atomics():
    o, report = run(
        HEAD + "atomic_fetch_add_explicit(&o[i % 4], a[i], memory_order_relaxed);",
        atomic_outputs=True,
        init_value=0,
        size=4,
    )
    assert o.tolist() == [sum(range(k, 64, 4)) for k in range(4)] and report.atomics == 64


def test_edge_threadgroups_are_smaller_and_grid_counts_threads():
    o, report = run(HEAD + "o[i] = threads_per_threadgroup.x;", grid=(40, 1, 1), threadgroup=(32, 1, 1), size=40)
    assert o[31] == 32 and o[39] == 8 and report.threads == 40 and report.threadgroups == 2


def test_calling_convention_of_shapes_scalars_and_templates():
    source = HEAD + "o[i] = T(a_shape[0] * 10 + a_ndim) + scale * N + (F ? 0.5f : 0.0f);"
    kernel = metal_kernel("k", ["a", "scale"], ["o"], source)
    (o,) = kernel(
        inputs=[mx.zeros((3, 5)), 2.0],
        template=[("T", mx.float16), ("N", 4), ("F", True)],
        grid=(8, 1, 1),
        threadgroup=(8, 1, 1),
        output_shapes=[(8,)],
        output_dtypes=[mx.float32],
    )
    assert o[0] == 40.5
    with pytest.raises(ValueError, match="negative"):
        run(HEAD + "o[i] = N;", template=[("N", -1)])
    with pytest.raises(ValueError, match="must be an int"):
        run(HEAD + "o[i] = N;", template=[("N", 1.5)])
    with pytest.raises(ValueError, match="limit is 1024"):
        run(HEAD + "o[i] = 0;", grid=(2048, 1, 1), threadgroup=(2048, 1, 1))
    with pytest.raises(ValueError, match="malformed signature"):
        metal_kernel("k", ["a"], ["o", "p"], "o[0] = a_shape[0]; p[0] = 0;")(
            inputs=[mx.zeros((9,))],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(1,)] * 2,
            output_dtypes=[mx.float32] * 2,
        )


def test_strided_inputs_are_seen_as_they_lie():
    whole = mx.arange(64).reshape(8, 8).astype(mx.float32)
    view = whole[:, :4]
    source = HEAD + "o[i] = a[(i / 4) * a_strides[0] + i % 4];"
    expected = view.reshape(-1).tolist()
    for contiguous in (True, False):
        o, report = run(
            source, view, ensure_row_contiguous=contiguous, grid=(32, 1, 1), threadgroup=(32, 1, 1), size=32
        )
        assert o.tolist() == expected
        assert report.buffers["a"].size == (128 if contiguous else 240)
    half = whole.astype(mx.bfloat16)[:, :4]
    o, _ = run(
        source, half, ensure_row_contiguous=False, grid=(32, 1, 1), threadgroup=(32, 1, 1), size=32, dtype=mx.bfloat16
    )
    assert o.tolist() == expected


def test_small_floats_round_like_numpy_and_mlx():
    values = mx.concatenate([mx.random.normal((4000,), key=mx.random.key(3)) * s for s in (1e-8, 1e-5, 1.0, 3e4)])
    values = mx.concatenate([values, mx.array([65504.0, 65519.9, 65520.0, 5.9604645e-8, 2.98e-8, 0.0, -0.0])])
    for dtype, name in ((mx.float16, "half"), (mx.bfloat16, "bfloat")):
        n = values.size
        o, _ = run(HEAD + f"o[i] = {name}(a[i]);", values, size=n, dtype=dtype, grid=(n, 1, 1))
        back, _ = run(HEAD + "o[i] = float(a[i]);", o, size=n, grid=(n, 1, 1))
        assert mx.array_equal(o, values.astype(dtype)) and mx.array_equal(back, o.astype(mx.float32))


def test_compile_errors_name_the_kernels_own_line():
    with pytest.raises(CompileError, match="k.metal:2:8"):
        run(HEAD + "o[i] = undefined_name;")


def test_outputs_must_be_written_and_launches_can_be_collected():
    with options(require_outputs=True), pytest.raises(KernelFault, match="216 of 256 bytes of output 'o'"):
        run(HEAD + "if (i < 10) o[i] = a[i];")
    with collect() as reports:
        run(HEAD + "o[i] = a[i];")
        run(HEAD + "o[i] = a[i];")
    assert [r.name for r in reports] == ["k", "k"]


def test_threadgroup_memory_is_measured_and_limited():
    source = HEAD + f"b[i] = a[i]; if (i < 8) c[1][i] = 1; {BARRIER} o[i] = b[63 - i] + c[1][i % 8];"
    _, report = run("threadgroup float b[32 * 2], c[2][8]; " + source)
    assert 320 <= report.threadgroup_bytes <= 320 + 32
    assert (report.threadgroup_bytes_written, report.threadgroup_bytes_read) == (256 + 32, 512)
    with pytest.raises(ValueError, match="limit is 32768"):
        run("threadgroup float b[9000]; " + HEAD + f"b[i] = a[i]; {BARRIER} o[i] = b[63 - i];")


def test_threadgroup_declarations_are_told_from_pointers():
    source = "threadgroup float b[4]; // threadgroup int z;\nthreadgroup float* p = b; f((threadgroup float*)p);"
    source += " threadgroup uint n;"
    assert mark_threadgroup(source).count("MSL_THREADGROUP") == 2
