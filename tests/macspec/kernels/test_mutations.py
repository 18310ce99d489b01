"""Seeded faults: every one must be caught by the executor or by a comparison, or the kernel tests prove nothing."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from metalcpu import CompileError, KernelFault, metal_kernel, options

from macspec.engine.noise import keyed_gumbel
from macspec.kernels import calls
from macspec.kernels.calls import FP_FORMATS
from macspec.kernels.source import load

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
LOG1P = "one_minus == 1.0f ? -u : -u * (metal::precise::log(one_minus) / (one_minus - 1.0f))"
VALUE = "((const device uint2*)(v + at))[chunk]"
#: kernel, what is replaced (its first occurrence), what it becomes
FAULTS = [
    ("draft_confidence", BARRIER, ""),
    ("draft_confidence", "index < other_index", "index > other_index"),
    ("draft_confidence", "i += threads", "i += threads + 1"),
    ("draft_confidence", "second = metal::max(runner, low)", "second = runner"),
    ("draft_confidence", "filled ? shared_sum[lane] : 0.0f", "shared_sum[lane]"),
    ("keyed_choice", "return w;", "return z;"),
    ("keyed_choice", "key[0] + row", "key[0]"),
    ("keyed_choice", "largest_gumbel = 23.0f", "largest_gumbel = 2.0f"),
    ("keyed_choice", "bool filled = lane < simdgroups_per_threadgroup", "bool filled = true"),
    ("keyed_choice", LOG1P, "metal::precise::log(one_minus)"),
    ("accept_prefix", "lane < drafted", "lane <= drafted"),
    ("accept_prefix", "lane <= accepted", "lane < accepted"),
    ("accept_prefix", "token == eos[i]", "token == eos[0]"),
    ("verify_qmm", "shift + BITS > 32", "shift + BITS > 33"),
    ("verify_qmm", "bool real = first + o < N", "bool real = true"),
    ("verify_qmm", "ushort d = 16", "ushort d = 8"),
    ("verify_qmm", "step * STEP / GROUP", "step / GROUP"),
    ("verify_qmm", "uint at = m * K", "uint at = m * N"),
    ("verify_qmm", "step += 32", "step += 31"),
    ("verify_qmm_matrix", BARRIER, ""),
    ("verify_qmm_matrix", "j + row % 2", "j + column % 2"),
    ("verify_qmm_matrix", "step += PARTS", "step += PARTS + 1"),
    ("verify_qmm_matrix", "chunk * CHUNK / GROUP", "chunk / GROUP"),
    ("verify_qmm_matrix", "x_chunk = step * 4 + row / 2", "x_chunk = chunk"),
    ("verify_qmm_matrix", "n < N && chunk < chunks", "n < N"),
    ("verify_qmm_fp", "(exponent + 120u)", "(exponent + 119u)"),
    ("verify_qmm_fp", "mantissa << 22", "mantissa << 21"),
    ("verify_qmm_fp", "code & 8u", "code & 4u"),
    ("verify_qmm_fp", "FORMAT == 1 ? e4m3(code)", "FORMAT == 1 ? e2m1(code)"),
    ("verify_qmm_fp", "FORMAT == 2 ? e4m3(code)", "FORMAT == 1 ? e4m3(code)"),
    ("verify_qmm_matrix_fp", "float(mantissa) * 0.5f", "0.0f"),
    ("verify_moe_qmm_fp", "float(mantissa) * 0.001953125f", "0.0f"),
    ("verify_moe_qmm", BARRIER, ""),
    ("verify_moe_qmm", "member[m] / TOPK", "member[m] % TOPK"),
    ("verify_moe_qmm", "earliest == a", "earliest != a"),
    ("verify_attention", "key <= last", "key < last"),
    ("verify_attention", "key >= earliest", "true"),
    ("verify_attention", f"first + key < end ? {VALUE} : uint2(0u)", VALUE),
    ("verify_attention", "added += simd_shuffle_xor(added, ushort(8));", ""),
    ("verify_attention", "top = metal::max(top, simd_shuffle_xor(top, ushort(1)));", ""),
    ("verify_attention", "query % gqa", "query / gqa"),
    ("verify_attention", f"    }}\n    {BARRIER}\n#ifdef QUANTISED\n    for", "    }\n#ifdef QUANTISED\n    for"),
    ("verify_attention_quantised", "word * PER_WORD / GROUP", "word / GROUP"),
    ("verify_attention_quantised", "packed >> (j * BITS)", "packed >> j"),
    ("verify_attention_quantised", "uint(k_scales_strides[1])", "uint(k_strides[1])"),
    ("verify_attention_quantised", f"    }}\n#endif\n    {BARRIER}", "    }\n#endif\n"),
    ("verify_attention_merge", "stats[(at + s) * 2] - highest", "stats[at * 2] - highest"),
    ("recurrent_replay", "float(StT(own[i] + float(k[key + i]) * delta))", "own[i] + float(k[key + i]) * delta"),
    ("recurrent_replay", "t < steps", "t <= steps"),
]


def check_draft_confidence(kernels):
    for vocab in (500, 2000):  # half a threadgroup of the largest size, and a whole one
        logits = np.array(mx.random.normal((3, vocab), key=mx.random.key(1)))
        logits[0, [100, 480]] = 9.0
        token, stats = kernels.draft_confidence(mx.array(logits))
        ordered = np.sort(logits, -1)
        log_sum = np.log(np.exp(logits.astype(np.float64)).sum(-1))
        assert token.tolist() == logits.argmax(-1).tolist()
        assert np.allclose(np.array(stats)[:, 2], ordered[:, -1] - ordered[:, -2], atol=1e-6)
        assert np.allclose(np.array(stats)[:, 0], log_sum, rtol=1e-5)


def check_keyed_choice(kernels):
    logits = mx.random.normal((8, 9000), key=mx.random.key(2))
    for count in (500, 9000):
        part = logits[:, :count]
        expected = mx.argmax(part / 2.0 + keyed_gumbel(5, 30, 8, count), axis=-1)
        assert mx.array_equal(kernels.keyed_choice(part, 2.0, 5, 30), expected)
    # The largest noise comes from tiny uniforms, which only log1p resolves: make it win and lose by a hair.
    noise = np.array(keyed_gumbel(5, 0, 8, 40_000))
    for row in range(8):
        best, other = int(noise[row].argmax()), int(noise[row].argmin())
        for lead in (1e-4, -1e-4):
            flat = np.full((1, 40_000), -60.0, np.float32)
            flat[0, best], flat[0, other] = 0.0, noise[row, best] - noise[row, other] - lead
            assert kernels.keyed_choice(mx.array(flat), 1.0, 5, row).item() == (best if lead > 0 else other)


def check_accept_prefix(kernels):
    def accept(draft, choice, depth, eos):
        tokens, summary = kernels.accept_prefix(*(mx.array(a, mx.int32) for a in (draft, choice)), depth, mx.array(eos))
        return tokens.tolist(), summary.tolist()

    assert accept([1, 2, 3], [1, 2, 9, 4], 3, [7, -1]) == ([1, 2, 9, -1], [2, 3, 9, 0])
    assert accept([1, 2], [1, 2, 9], 2, [7, 9]) == ([1, 2, 9], [2, 3, 9, 1])
    assert accept([1, 2, 3], [1, 5, 9, 4], 1, [7, -1]) == ([1, 5, -1, -1], [1, 2, 5, 0])


def check_verify_qmm(kernels, name="verify_qmm"):
    for bits in (3, 4):
        packed = mx.quantize(mx.random.normal((10, 1056), key=mx.random.key(bits)), group_size=32, bits=bits)
        x = mx.random.normal((2, 1056), key=mx.random.key(9))
        expected = x @ mx.dequantize(*packed, group_size=32, bits=bits).T
        found = getattr(kernels, name)(x, *packed, group_size=32, bits=bits)
        assert mx.abs(found - expected).max() < 1e-3


def check_fp(kernels, name):
    for mode, (_, group, bits) in FP_FORMATS.items():
        form = {"group_size": group, "bits": bits, "mode": mode}
        w = mx.random.normal((3, 10, 96), key=mx.random.key(bits)) * mx.exp(4 * mx.sin(mx.arange(96)))
        packed = mx.quantize(w, **form)
        if mode == "nvfp4":  # small scales, which have no exponent of their own
            packed = [packed[0], packed[1] % 16]
        values = mx.dequantize(*packed, **form, dtype=mx.float32)
        x, ids = mx.random.normal((2, 96), key=mx.random.key(9)), mx.array([[0, 1], [2, 0]], mx.uint32)
        if name == "verify_moe_qmm":
            found = kernels.verify_moe_qmm(x, ids, *packed, **form)
            expected = mx.stack([mx.stack([values[e] @ x[r] for e in row]) for r, row in enumerate(ids.tolist())])
        else:
            found, expected = getattr(kernels, name)(x, *(part[0] for part in packed), **form), x @ values[0].T
        assert mx.abs(found - expected).max() < 1e-5 * mx.abs(expected).max()


def check_verify_moe_qmm(kernels):
    packed = mx.quantize(mx.random.normal((4, 9, 96), key=mx.random.key(3)), group_size=32, bits=4)
    x, ids = mx.random.normal((3, 96), key=mx.random.key(4)), mx.array([[0, 1], [1, 2], [3, 0]], mx.uint32)
    w = mx.dequantize(*packed, group_size=32, bits=4)
    expected = mx.stack([mx.stack([w[e] @ x[r] for e in row]) for r, row in enumerate(ids.tolist())])
    assert mx.abs(kernels.verify_moe_qmm(x, ids, *packed, group_size=32, bits=4) - expected).max() < 1e-4


def check_verify_attention(kernels):
    keys = mx.random.split(mx.random.key(5), 3)
    q, k, v = (mx.random.normal((1, h, n, 64), key=s) for h, n, s in zip((4, 2, 2), (3, 75, 75), keys, strict=True))
    with options(require_outputs=False):
        for window in (0, 9):
            position, key = mx.arange(72, 75)[:, None], mx.arange(75)[None]
            mask = (key <= position) & (key > position - (window or 1000))
            expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask).swapaxes(1, 2)
            found = kernels.verify_attention(q, k, v, scale=0.3, window=window, split=32)
            assert mx.abs(found - expected).max() < 1e-5


def check_quantised(kernels):
    keys = mx.random.split(mx.random.key(5), 3)
    q = mx.random.normal((1, 4, 3, 64), key=keys[0])
    k, v = (mx.quantize(mx.random.normal((1, 2, 75, 64), key=n), 32, 4) for n in keys[1:])
    values = [mx.dequantize(*part, 32, 4) for part in (k, v)]
    expected = mx.fast.scaled_dot_product_attention(q, *values, scale=0.3, mask="causal").swapaxes(1, 2)
    with options(require_outputs=False):
        found = kernels.verify_attention_quantised(q, k, v, scale=0.3, group_size=32, bits=4, split=32)
    assert mx.abs(found - expected).max() < 1e-5


def check_recurrent_replay(kernels):
    keys = mx.random.split(mx.random.key(6), 5)
    shapes = [(1, 4, 1, 32), (1, 4, 2, 5), (1, 4, 2), (1, 4, 2), (1, 2, 5, 32)]
    pairs = zip(shapes, keys, strict=True)
    k, v, g, beta, state = (mx.random.uniform(shape=s, key=n).astype(mx.bfloat16) for s, n in pairs)
    stepped = state
    for t in range(3):
        one = slice(t, t + 1)
        stepped = kernels.recurrent_replay(k[:, one], v[:, one], g[:, one], beta[:, one], stepped, 1)
    assert mx.array_equal(kernels.recurrent_replay(k, v, g, beta, state, 3), stepped)


CHECKS: dict[str, Callable[[calls.Kernels], None]] = {
    "draft_confidence": check_draft_confidence,
    "keyed_choice": check_keyed_choice,
    "accept_prefix": check_accept_prefix,
    "verify_qmm": check_verify_qmm,
    "verify_qmm_matrix": partial(check_verify_qmm, name="verify_qmm_matrix"),
    "verify_qmm_fp": partial(check_fp, name="verify_qmm"),
    "verify_qmm_matrix_fp": partial(check_fp, name="verify_qmm_matrix"),
    "verify_moe_qmm_fp": partial(check_fp, name="verify_moe_qmm"),
    "verify_moe_qmm": check_verify_moe_qmm,
    "verify_attention": check_verify_attention,
    "verify_attention_quantised": check_quantised,
    "verify_attention_merge": check_verify_attention,
    "recurrent_replay": check_recurrent_replay,
}


@pytest.mark.parametrize("name", list(CHECKS))
def test_the_kernel_itself_passes_the_check(name, kernels):
    CHECKS[name](kernels)


@pytest.mark.parametrize(("name", "old", "new"), FAULTS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(FAULTS)])
def test_every_fault_is_caught(monkeypatch, name, old, new):
    source = load(name)
    assert old in source.body or old in source.header, "the fault no longer fits the source"
    faulty = replace(source, header=source.header.replace(old, new, 1), body=source.body.replace(old, new, 1))
    monkeypatch.setattr(calls, "load", lambda wanted: faulty if wanted == name else load(wanted))
    with pytest.raises((AssertionError, KernelFault, CompileError)):
        for schedule in (0, 1, 7):
            with options(schedule=schedule):
                CHECKS[name](calls.Kernels(metal_kernel))
