"""Kernels over the CPU executor, checked as strictly as it can."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import macspec  # noqa: F401  loads the fast BLAS before any test imports MLX

sys.path.insert(0, str(Path(__file__).parents[2] / "metal"))
sys.path.insert(0, str(Path(__file__).parent))

from metalcpu import metal_kernel, options

from macspec.kernels.calls import Kernels

SCHEDULES = (0, 1, 7)


@pytest.fixture(autouse=True)
def strict():
    """Divergent simdgroup operations and unwritten outputs are faults in every test of this folder."""
    with options(strict=True, require_outputs=True):
        yield


@pytest.fixture
def kernels() -> Kernels:
    return Kernels(metal_kernel)


@pytest.fixture
def every_schedule() -> Callable[[Callable[[], Any]], list[np.ndarray]]:
    """Run a function under three schedules; the results must agree bit for bit."""

    def run(call: Callable[[], Any]) -> list[np.ndarray]:
        first: list[np.ndarray] | None = None
        for schedule in SCHEDULES:
            with options(schedule=schedule):
                result = call()
            arrays = [as_bits(a) for a in (result if isinstance(result, tuple) else (result,))]
            if first is None:
                first, values = arrays, [to_numpy(a) for a in (result if isinstance(result, tuple) else (result,))]
            assert all(np.array_equal(a, b) for a, b in zip(first, arrays, strict=True)), f"schedule {schedule} differs"
        return values

    return run


def as_bits(a: mx.array) -> np.ndarray:
    return np.array(a.view(mx.uint16) if a.dtype == mx.bfloat16 else a).view(np.uint8)


def to_numpy(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32)).astype(np.float64) if mx.issubdtype(a.dtype, mx.floating) else np.array(a)
