"""Type-check a kernel with real address spaces, as a Metal compiler would see them. Needs clang++."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from .build import RUNTIME
from .translate import Argument, mark_threadgroup, parameters, template_lines

_ARGUMENTS = [
    "-std=c++17",
    "-x",
    "c++",
    "-fsyntax-only",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    "-Wno-unused-const-variable",
    "-Wno-unused-function",
    "-ffp-contract=off",
    "-I",
    str(RUNTIME),
    "-",
]


def clang_available() -> bool:
    """Whether the lint can run on this machine."""
    return shutil.which("clang++") is not None


def lint(
    name: str,
    source: str,
    inputs: Sequence[Argument],
    outputs: Sequence[Argument],
    *,
    header: str = "",
    template: Sequence[tuple[str, object]] = (),
    atomic: bool = False,
) -> list[str]:
    """The compiler's errors and warnings, with the kernel's own line numbers; empty when clean.

    Catches pointers without an address space, mixed address spaces, ``double``, uninitialised and unused variables. The
    ``size`` of an input decides whether it is ``constant`` (fewer than 8 elements) or ``device``: lint both where both
    occur.
    """
    declarations = ", ".join(d for d, _ in parameters(source, inputs, outputs, atomic))
    code = "\n".join(
        [
            '#include "lint.h"',
            f'#line 1 "{name}.header"',
            mark_threadgroup(header),
            '#line 1 "generated"',
            *template_lines(template),
            f"void {name}({declarations}) {{",
            f'#line 1 "{name}.metal"',
            mark_threadgroup(source),
            "}",
        ]
    )
    done = subprocess.run(["clang++", *_ARGUMENTS], input=code, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if "error:" in line or "warning:" in line]
