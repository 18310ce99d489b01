"""What a Metal compiler and an M1 would refuse: address spaces, types, threadgroup memory, threads."""

import re

import mlx.core as mx
import pytest
from metalcpu import collect, lint, options
from metalcpu.translate import Argument

from macspec.kernels.source import NAMES, load, parse

F, U, I32, U8 = mx.bfloat16, mx.uint32, mx.int32, mx.uint8
#: Per kernel: template, and per array (type, dimensions, elements). Elements below 8 put an input into constant memory.
SIGNATURES = {
    "draft_confidence": ([("T", F)], [(F, 2, 99), (I32, 1, 1)], [(U, 1, 9), (mx.float32, 2, 9)]),
    "keyed_choice": ([("T", F)], [(F, 2, 99), (U, 1, 3), (mx.float32, 1, 1), (I32, 1, 1)], [(U, 1, 9)]),
    "accept_prefix": ([], [(I32, 1, 7), (I32, 1, 8), (I32, 1, 1), (I32, 1, 2)], [(I32, 1, 8), (I32, 1, 4)]),
    "verify_qmm": (
        [("T", F), ("BITS", 3), ("GROUP", 64), ("ROWS", 8)],
        [(F, 2, 64), (U, 2, 99), (F, 2, 99), (F, 2, 99), (I32, 1, 1)],
        [(F, 2, 99)],
    ),
    "verify_qmm_matrix": (
        [("T", F), ("BITS", 3), ("GROUP", 64), ("TILES", 2)],
        [(F, 2, 64), (U, 2, 4), (F, 2, 4), (F, 2, 4), (I32, 1, 1)],
        [(F, 2, 99)],
    ),
    "verify_qmm_fp": (
        [("T", F), ("BITS", 4), ("GROUP", 16), ("ROWS", 8), ("FORMAT", 2)],
        [(F, 2, 64), (U, 2, 99), (U8, 2, 99), (I32, 1, 1)],
        [(F, 2, 99)],
    ),
    "verify_qmm_matrix_fp": (
        [("T", F), ("BITS", 8), ("GROUP", 32), ("TILES", 2), ("FORMAT", 1)],
        [(F, 2, 64), (U, 2, 4), (U8, 2, 4), (I32, 1, 1)],
        [(F, 2, 99)],
    ),
    "verify_moe_qmm_fp": (
        [("T", F), ("BITS", 4), ("GROUP", 32), ("ROWS", 8), ("TOPK", 2), ("PER_SLOT", True), ("FORMAT", 0)],
        [(F, 2, 64), (U, 1, 2), (U, 3, 99), (U8, 3, 99), (I32, 1, 1)],
        [(F, 3, 99)],
    ),
    "verify_attention_quantised": (
        [("T", F), ("D", 128), ("SPLIT", 512), ("BITS", 8), ("GROUP", 64)],
        [(F, 4, 99), (U, 4, 99), (F, 4, 99), (F, 4, 99), (U, 4, 99), (F, 4, 4), (F, 4, 4)]
        + [(I32, 1, 1), (I32, 1, 2), (mx.float32, 1, 1)],
        [(mx.float32, 4, 99), (mx.float32, 4, 99)],
    ),
    "verify_moe_qmm": (
        [("T", F), ("BITS", 4), ("GROUP", 64), ("ROWS", 8), ("TOPK", 2), ("PER_SLOT", False)],
        [(F, 2, 64), (U, 1, 2), (U, 3, 99), (F, 3, 99), (F, 3, 99), (I32, 1, 1)],
        [(F, 3, 99)],
    ),
    "verify_attention": (
        [("T", F), ("D", 128), ("SPLIT", 512)],
        [(F, 4, 99), (F, 4, 99), (F, 4, 99), (I32, 1, 1), (I32, 1, 2), (mx.float32, 1, 1)],
        [(mx.float32, 4, 99), (mx.float32, 4, 99)],
    ),
    "verify_attention_merge": ([("T", F)], [(mx.float32, 4, 99), (mx.float32, 4, 2), (I32, 1, 1)], [(F, 4, 99)]),
    "recurrent_replay": (
        [("StT", F), ("DK", 64)],
        [(F, 4, 99), (F, 4, 4), (F, 3, 4), (F, 3, 4), (F, 4, 99), (I32, 1, 1)],
        [(F, 4, 99)],
    ),
}


@pytest.mark.parametrize("small", [True, False], ids=["as-declared", "all-device"])
@pytest.mark.parametrize("name", NAMES)
def test_clean_under_real_address_spaces(name, small):
    source, (template, takes, gives) = load(name), SIGNATURES[name]
    inputs = [Argument(n, t, d, s if small else 99) for n, (t, d, s) in zip(source.inputs, takes, strict=True)]
    outputs = [Argument(n, t, d, s) for n, (t, d, s) in zip(source.outputs, gives, strict=True)]
    assert lint(name, source.body, inputs, outputs, header=source.header, template=template) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_states_its_contract_and_uses_safe_constructs(name):
    source = load(name)
    assert len(source.contract) > 300 and "launch" in source.contract
    code = re.sub(r"//[^\n]*", "", source.header + source.body)
    assert not re.search(r"\bdouble\b|\bINFINITY\b|\bsimd_sum\((?!same)|\bbfloat\b|\bhalf\b|\bstruct\b", code)
    # MLX looks for the text: an input's name at the end of another identifier would add a parameter behind our back.
    for found in (f"{name}_{what}" for name in source.inputs for what in ("shape", "strides", "ndim")):
        assert code.count(found) == len(re.findall(rf"\b{found}\b", code)), found
    # A body may be shared by several kernels; every array it asks about is an input of one of them.
    sharing = {name for other in map(load, NAMES) if other.body == source.body for name in other.inputs}
    assert set(re.findall(r"\w+(?=_(?:shape|strides|ndim)\b)", code)) <= sharing


def test_threads_and_threadgroup_memory_stay_within_an_m1(kernels):
    kernels.max_threads = 512
    with collect() as reports, options(max_threads=512, require_outputs=False):
        kernels.draft_confidence(mx.zeros((1, 4000)))
        kernels.keyed_choice(mx.zeros((1, 4000)), 1.0, 1, 1)
        q, k = mx.zeros((1, 8, 16, 256), mx.float32), mx.zeros((1, 1, 40, 256), mx.float32)
        kernels.verify_attention(q, k, k, scale=1.0)
        packed = mx.quantize(k, 64, 4)
        kernels.verify_attention_quantised(q, packed, packed, scale=1.0, group_size=64, bits=4)
    assert max(r.threads_per_threadgroup for r in reports) == 512
    assert max(r.threadgroup_bytes for r in reports) == 32 * 1024


def test_malformed_sources_are_refused():
    with pytest.raises(ValueError, match="unknown directive 'nonsense'"):
        parse("k", "//@ nonsense")
    with pytest.raises(ValueError, match="missing outputs"):
        parse("k", "//@ inputs a\n//@ template\n//@ header\n//@ body\n")
    with pytest.raises(ValueError, match="missing the body"):
        parse("k", "//@ inputs a\n//@ outputs b\n//@ template\n//@ header\n")
