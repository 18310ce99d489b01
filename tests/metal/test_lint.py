"""The address-space lint catches what g++ cannot."""

import mlx.core as mx
import pytest
from metalcpu import lint
from metalcpu.translate import Argument

A, SMALL, OUT = (Argument(n, mx.float32, 1, s) for n, s in (("a", 64), ("a", 4), ("o", 64)))
HELPER = "template <class P> inline float first(P p) { return p[0]; }\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("const float* p = a; o[0] = p[0];", "cannot initialize"),
        ("threadgroup float b[4]; device float* p = b; o[0] = p[0];", "cannot initialize"),
        ("double d = a[0]; o[0] = d;", "MSL_HAS_NO_DOUBLE"),
        ("a[0] = 1.0f;", "read-only|not assignable"),
        ("float z; o[0] = z;", "uninitialized"),
        ("int unused = 3; o[0] = 1.0f;", "unused"),
    ],
)
def test_refused(source, message):
    import re

    found = lint("k", source, [A], [OUT])
    assert found and re.search(message, found[0]) and "k.metal:1" in found[0]


def test_clean():
    source = "float4 v = float4(1.0f); threadgroup float b[4]; b[0] = v.xy.y; o[0] = simd_sum(b[0]) + first(a);"
    assert lint("k", source, [A], [OUT], header=HELPER) == []


def test_small_inputs_are_constant():
    header = "inline float first(const device float* p) { return p[0]; }\n"
    assert lint("k", "o[0] = first(a);", [A], [OUT], header=header) == []
    assert "no matching function" in lint("k", "o[0] = first(a);", [SMALL], [OUT], header=header)[0]
    assert lint("k", "o[0] = first(a);", [SMALL], [OUT], header=HELPER) == []
