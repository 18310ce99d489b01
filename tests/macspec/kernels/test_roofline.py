"""The computed tables: bytes agree with what the kernels really read, the stock model with what was published."""

import json

import mlx.core as mx
import pytest
from metalcpu import options

from benchmarks import kernels as command
from benchmarks.roofline import Matrix, fit, floor_ms, matrices, read, row_limit, stock_ms
from macspec.kernels.source import load

CHIPS = {c["name"]: c for c in read("chips", "chips")}


def test_bytes_of_a_matrix_are_what_the_kernel_reads(kernels):
    for bits, group in ((4, 64), (8, 32)):
        packed = mx.quantize(mx.random.normal((24, 256)).astype(mx.bfloat16), group_size=group, bits=bits)
        kernels.verify_qmm(mx.zeros((4, 256), mx.bfloat16), *packed, group_size=group, bits=bits)
        traffic = kernels.built(load("verify_qmm")).report.buffers
        counted = sum(traffic[name].read_distinct for name in ("w", "scales", "biases"))
        assert counted == Matrix(24, 256, 1, bits, group).nbytes


def test_bytes_of_a_cache_are_what_the_kernel_reads(kernels):
    q, k = mx.zeros((1, 8, 2, 64), mx.bfloat16), mx.zeros((1, 2, 300, 64), mx.bfloat16)
    with options(require_outputs=False):
        kernels.verify_attention(q, k, k, scale=1.0)
    traffic = kernels.built(load("verify_attention")).report.buffers
    assert traffic["k"].read + traffic["v"].read == 2 * 2 * 2 * 64 * 300


def test_the_stock_model_is_as_good_as_the_tables_say():
    found = command.model_errors(
        read("stock_qmm", "measurements"), CHIPS, fit(read("stock_qmm", "measurements"), CHIPS)
    )
    assert found["median_error_unseen"] < 0.20 and found["largest_error_unseen"] < 0.45
    assert [s["use"] for s in found["series"]].count("fit") == 1


def test_published_whole_passes_are_above_the_floor_and_the_model_is_as_far_off_as_the_docs_say():
    passes = command.whole_passes(CHIPS, fit(read("stock_qmm", "measurements"), CHIPS))
    assert all(p["floor_ms"] < p["ms"] for p in passes)
    errors = {
        kind: [p["error"] for p in passes if (p["rows"] > 1, "A3B" in p["model"]) == kind]
        for kind in ((False, False), (False, True), (True, False))
    }
    assert max(map(abs, errors[False, False])) < 0.22
    assert -0.66 < min(errors[False, True]) and max(errors[False, True]) < 0
    assert 0 < min(errors[True, False]) and max(errors[True, False]) < 0.48


def test_stock_steps_where_mlx_does_and_the_floor_is_a_floor():
    constants, matrix = fit(read("stock_qmm", "measurements"), CHIPS), Matrix(17408, 5120)
    times = [stock_ms(matrix, CHIPS["M4 Pro"], rows, constants) for rows in range(1, 17)]
    steps = [times[i] - times[i - 1] for i in range(1, 16)]
    assert steps[5 - 1] > 2 * steps[4 - 1]  # the sixth row starts a second read
    assert row_limit(CHIPS["M4 Pro"], 5120, 17408) == 13 and len(set(times[12:])) == 1
    old = [stock_ms(matrix, CHIPS["M1"], rows, constants) for rows in (1, 2, 5)]
    assert old[1] == pytest.approx(2 * old[0]) and old[2] == pytest.approx(5 * old[0])
    for model in read("model_shapes", "models"):
        for chip in CHIPS.values():
            for rows in (1, 8, 16):
                times = command.pass_times(model, chip, rows, 4096, constants)
                assert times["floor_ms"] <= times["one_read_ms"] <= times["stock_ms"] * 1.0001 or rows > 8


def test_model_shapes_have_the_sizes_of_their_names():
    sizes = {m["name"]: sum(x.weights for x in matrices(m, 10**6)) / 1e9 for m in read("model_shapes", "models")}
    expected = {"Qwen3-4B": 4.0, "Qwen3-8B": 7.6, "Qwen3.5-9B": 8.0, "Qwen3.5-27B": 26.0, "Qwen3.5-35B-A3B": 34.5}
    assert sizes == pytest.approx(expected, rel=0.05)  # without embeddings and vision parts
    active = sum(x.weights for x in matrices(read("model_shapes", "models")[-1], 1)) / 1e9
    assert active == pytest.approx(3.0, rel=0.1)


def test_more_rows_read_more_experts_but_fewer_each():
    model = read("model_shapes", "models")[-1]
    assert floor_ms(model, CHIPS["M4 Pro"], 1, 1) < floor_ms(model, CHIPS["M4 Pro"], 8, 1)
    assert floor_ms(model, CHIPS["M4 Pro"], 8, 1) < 8 * floor_ms(model, CHIPS["M4 Pro"], 1, 1)


def test_the_command_says_that_nothing_was_measured(capsys, tmp_path):
    assert command.main(["--chip", "M4 Pro", "--json", str(tmp_path / "out.json")]) == 0
    assert "COMPUTED, NOT MEASURED" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["kind"].startswith("computed")
    with pytest.raises(SystemExit):
        command.main(["--chip", "M9"])
    assert command.main(["--race"]) == 2  # no GPU here
