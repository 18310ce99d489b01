"""Type-check a kernel with real address spaces, as a Metal compiler would see them, with the libclang library."""

from __future__ import annotations

from collections.abc import Sequence

from clang.cindex import Diagnostic, Index

from .build import RUNTIME
from .translate import Argument, mark_threadgroup, parameters, template_lines

_ARGUMENTS = [
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    "-Wno-unused-const-variable",
    "-Wno-unused-function",
    "-ffp-contract=off",
    "-I",
    str(RUNTIME),
]
#: Where the sources seem to be; they are read from memory.
_FOLDER = "/lint"


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
    main = "\n".join(
        [
            '#include "lint.h"',
            f'#include "{name}.header"',
            *template_lines(template),
            f"void {name}({declarations}) {{",
            f'#include "{name}.metal"',
            "}\n",
        ]
    )
    files = {
        "generated.cpp": main,
        f"{name}.header": mark_threadgroup(header),
        f"{name}.metal": mark_threadgroup(source),
    }
    sources = [(f"{_FOLDER}/{file}", text) for file, text in files.items()]
    unit = Index.create().parse(sources[0][0], args=_ARGUMENTS, unsaved_files=sources)
    return [str(found.format()) for found in unit.diagnostics if found.severity >= Diagnostic.Warning]
