"""Whatever is imported first, a fast BLAS is loaded before MLX."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import importlib, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "mlx":
            print("loaded" if "macspec_models" in sys.modules else "missing")
            sys.stdout.flush()
            import os
            os._exit(0)

sys.meta_path.insert(0, Watch())
importlib.import_module(sys.argv[1])
print("no MLX")
"""


@pytest.mark.parametrize(
    "module",
    [
        "macspec.api",
        "macspec.runtime",
        "macspec.bench.arms",
        "macspec.engine.loop",
        "macspec.kernels.library",
        "macspec.profiling.measure",
    ],
)
def test_fast_blas_comes_before_mlx(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, module], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr
