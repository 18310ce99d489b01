"""Run the Metal sources of ``mx.fast.metal_kernel`` on a CPU, checked; see ../README.md."""

from .executor import ExecutedKernel, KernelFault, Options, Report, collect, installed, metal_kernel, options
from .lint import lint
from .translate import CompileError

__all__ = [
    "CompileError",
    "ExecutedKernel",
    "KernelFault",
    "Options",
    "Report",
    "collect",
    "installed",
    "lint",
    "metal_kernel",
    "options",
]
