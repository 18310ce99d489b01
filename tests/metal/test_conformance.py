"""mlx-lm's own Metal kernels, unmodified, match their reference ops in the executor."""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

import mlx.core as mx
import pytest
from metalcpu import KernelFault, collect, installed, metal_kernel, options
from mlx import nn

SCHEDULES = (0, 1, 5)


@pytest.fixture(scope="module")
def load() -> Callable[[str], ModuleType]:
    """A private copy of an mlx-lm module whose kernels are executed here; the imported original is left alone."""

    def load_copy(name: str) -> ModuleType:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        copy = importlib.util.spec_from_file_location(f"{name}_executed", spec.origin)
        assert copy is not None and copy.loader is not None
        module = importlib.util.module_from_spec(copy)
        sys.modules[copy.name] = module
        with installed():
            copy.loader.exec_module(module)
        return module

    return load_copy


@pytest.fixture(params=SCHEDULES)
def schedule(request: pytest.FixtureRequest):
    with options(schedule=request.param):
        yield request.param


def close(a: mx.array, b: mx.array, bound: float) -> bool:
    return bool(mx.all(mx.abs(a.astype(mx.float32) - b.astype(mx.float32)) <= bound))


def gated_delta_inputs(dtype: mx.Dtype, dk: int, dv: int, steps: int):
    b, hk, hv = 1, 2, 4
    q, k = (mx.random.normal((b, steps, hk, dk)).astype(dtype) * 0.1 for _ in range(2))
    v = mx.random.normal((b, steps, hv, dv)).astype(dtype)
    g, beta = mx.random.uniform(0.5, 1, (b, steps, hv)), mx.random.uniform(0, 1, (b, steps, hv)).astype(dtype)
    return q, k, v, g, beta, mx.random.normal((b, hv, dv, dk)) * 0.1


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float32, 1e-5), (mx.bfloat16, 2e-2)])
@pytest.mark.parametrize("dk", [64, 128])
def test_gated_delta(load, schedule, dtype, bound, dk):
    mx.random.seed(1)
    module = load("mlx_lm.models.gated_delta")
    inputs = gated_delta_inputs(dtype, dk, 64, 3)
    y, state = module.gated_delta_kernel(*inputs)
    expected_y, expected_state = module.gated_delta_ops(*inputs)
    assert close(y, expected_y, bound) and close(state, expected_state, bound)


def test_gated_delta_mask_and_vector_gates(load, schedule):
    mx.random.seed(2)
    module = load("mlx_lm.models.gated_delta")
    q, k, v, _, beta, state = gated_delta_inputs(mx.float32, 64, 32, 4)
    g = mx.random.uniform(0.5, 1, (1, 4, 4, 64))
    mask = mx.array([[True, True, False, True]])
    with options(races=False):  # the 32 lanes of a masked row all write the same zero
        y, new = module.gated_delta_kernel(q, k, v, g, beta, state, mask)
    expected_y, expected = module.gated_delta_ops(q, k, v, g, beta, state, mask)
    assert close(y[:, mx.array([0, 1, 3])], expected_y[:, mx.array([0, 1, 3])], 1e-5) and close(new, expected, 1e-5)


def test_ssm_update(load, schedule):
    mx.random.seed(3)
    module = load("mlx_lm.models.ssm")
    heads, dim, groups, states = 4, 16, 2, 64
    x = mx.random.normal((1, 1, heads, dim))
    b, c = (mx.random.normal((1, 1, groups, states)) for _ in range(2))
    arguments = (x, mx.random.normal((heads,)), b, c, mx.random.normal((heads,)), mx.random.normal((1, 1, heads)))
    arguments += (mx.random.normal((heads,)), mx.random.normal((1, heads, dim, states)))
    y, state = module.ssm_update_kernel(*arguments, (0.001, 100.0))
    expected_y, expected_state = module.ssm_attn(*arguments)
    assert close(y, expected_y, 2e-4) and close(state, expected_state, 2e-5)


def test_wkv7(load, schedule):
    mx.random.seed(4)
    module = load("mlx_lm.models.rwkv7")
    heads, dim, steps = 2, 64, 3
    r, w, k, v, a, b = (mx.random.uniform(-0.2, 0.2, (1, steps, heads, dim)) for _ in range(6))
    state = mx.random.normal((1, heads, dim, dim)) * 0.1
    y, new = module.wkv7_kernel(r, w, k, v, a, b, state)
    rows = []
    for t in range(steps):
        row, state = module._wkv7_step_ops(r[:, t], w[:, t], k[:, t], v[:, t], a[:, t], b[:, t], state)
        rows.append(row[..., 0])
    assert close(y, mx.stack(rows, axis=1), 1e-5) and close(new, state, 1e-5)


def test_bitlinear(load, schedule):
    mx.random.seed(5)
    module = load("mlx_lm.models.bitlinear_layers")
    layer = module.BitLinear(128, 16, bias=False)
    layer.weight = mx.random.randint(0, 3, (4, 128)).astype(mx.uint8) * 85  # the same ternary digit in all four rows
    x = mx.random.normal((3, 128))
    ternary = (mx.concatenate([(layer.weight >> (2 * i)) & 3 for i in range(4)])).astype(mx.float32) - 1
    assert close(layer(x), x @ ternary.T, 1e-4)


def test_head_norms(load, schedule):
    mx.random.seed(6)
    d, hq, hk = 64, 4, 2
    x = mx.random.normal((1, 3, 2 * (hq + hk) * d))
    q, k = load("mlx_lm.kernels.qk_norm").qk_norm(x, n_heads=hq, n_kv_heads=hk, head_dim=d, eps=1e-6, query_scale=0.125)
    heads = mx.fast.rms_norm(x[..., : (hq + hk) * d].reshape(1, 3, hq + hk, d), None, 1e-6)
    assert close(q, heads[:, :, :hq] * 0.125, 1e-6) and close(k, heads[:, :, hq:], 1e-5)
    roped = load("mlx_lm.kernels.qk_norm_rope").qk_norm_rope(
        x, n_heads=hq, n_kv_heads=hk, head_dim=d, eps=1e-6, query_scale=0.125, rope_base=10000.0, offset=7
    )
    rope = mx.fast.rope(heads.swapaxes(1, 2), d, traditional=True, base=10000.0, scale=1.0, offset=7).swapaxes(1, 2)
    assert close(roped[1], rope[:, :, hq:], 1e-4)


def test_norm_add_norm_and_gate(load, schedule):
    mx.random.seed(7)
    module = load("mlx_lm.kernels.norm_add_norm")
    branch, stream, norm = mx.random.normal((3, 512)), mx.random.normal((3, 512)), nn.RMSNorm(512, eps=1e-6)
    norm.weight, post = mx.random.uniform(0.5, 1.5, (512,)), mx.random.uniform(0.5, 1.5, (512,))
    alpha, beta = mx.random.uniform(0.5, 1, (512,)), mx.random.uniform(0.5, 1, (512,))
    with collect() as reports:
        total, normed = module.norm_add_norm(
            branch, stream, alpha=alpha, beta=beta, post_weight=post, post_eps=1e-6, next_norm=norm
        )
    assert close(normed, norm(total), 1e-5) and reports[0].threadgroup_bytes > 0
    assert close(module.pre_norm(total, norm, dtype=mx.float32), norm(total), 1e-5)
    gate, x = mx.random.normal((1, 3, 128)), mx.random.normal((1, 2, 3, 64))
    out = load("mlx_lm.kernels.rms_norm_sigmoid_gate").rms_norm_sigmoid_gate(x, gate, eps=1e-6)
    expected = mx.fast.rms_norm(x, None, 1e-6).swapaxes(1, 2).reshape(1, 3, 128) * mx.sigmoid(gate)
    assert close(out, expected, 1e-5)


def test_expert_routing_and_combine(load, schedule):
    mx.random.seed(8)
    logits, bias = mx.random.normal((5, 40)), mx.random.normal((40,)) * 0.1
    ids, weights = load("mlx_lm.kernels.expert_routing").expert_routing(
        logits, bias, top_k=4, multiplier=1.5, score_eps=1e-9, route_scale=2.0
    )
    scores = mx.sigmoid(logits * 1.5)
    order = mx.argsort(-(scores + bias), axis=-1)[:, :4]
    expected = mx.take_along_axis(scores, order, axis=-1)
    assert mx.array_equal(ids, order.astype(mx.uint32))
    assert close(weights, 2 * expected / expected.sum(-1, keepdims=True), 1e-5)


def test_sinkhorn(load, schedule, monkeypatch):
    mx.random.seed(9)
    module = load("mlx_lm.models.deepseek_v41")
    comb, eps = mx.random.uniform(0.1, 1, (5, 4, 4)), mx.array([1e-6])
    expected = module._sinkhorn(comb, iters=3, eps=eps)
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert close(module._sinkhorn(comb, iters=3, eps=eps), expected, 1e-5)


def test_divergence_losses(load, monkeypatch):
    mx.random.seed(10)
    monkeypatch.setattr("mlx_lm.utils.can_run_metal", lambda: True)
    module = load("mlx_lm.tuner.losses")
    q, p = mx.random.normal((2, 3000)), mx.random.normal((2, 3000))
    lq, lp = (a - mx.logsumexp(a, axis=-1, keepdims=True) for a in (q, p))
    expected = (mx.exp(lp) * (lp - lq)).sum(-1)
    kernel = module._kl_forward_kernel
    call = {
        "inputs": [q, p],
        "output_shapes": [(2,)],
        "output_dtypes": [mx.float32],
        "template": [("T", mx.float32), ("V", 3000)],
        "grid": (1024, 2, 1),
        "threadgroup": (1024, 1, 1),
    }
    # The shared maxima are overwritten by sums while other simdgroups may still read them, and the last barrier
    # orders no memory: the executor refuses the kernel as shipped. With the barriers in place it is right.
    with pytest.raises(KernelFault, match="race in threadgroup memory"):
        kernel(**call)
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    cured = kernel.source.replace("// Share the sum_exp", f"{barrier} // Share the sum_exp")
    cured = cured.replace("threadgroup_barrier(mem_flags::mem_none);", barrier)
    for schedule in SCHEDULES:
        with options(schedule=schedule):
            (found,) = metal_kernel("kl_cured", kernel.input_names, kernel.output_names, cured)(**call)
        assert close(found, expected, 1e-4)
