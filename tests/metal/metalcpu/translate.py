"""From a kernel source and its call to one C++ file, following what MLX generates around the source.

The rules are those of MLX's ``backend/metal/custom_kernel.cpp``: shape, stride and dimension parameters and thread
attributes exist only where their name occurs as a substring of the source (the header does not count); 0-dimensional
inputs are references; inputs of fewer than 8 elements live in the constant address space, others in the device one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

CPP_TYPES = {
    mx.bool_: "bool",
    mx.uint8: "uint8_t",
    mx.int8: "int8_t",
    mx.uint16: "uint16_t",
    mx.int16: "int16_t",
    mx.uint32: "uint32_t",
    mx.int32: "int32_t",
    mx.uint64: "uint64_t",
    mx.int64: "int64_t",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.float32: "float",
}


def _vector(field: str) -> str:
    return f"uint3(msl_context.{field}[0], msl_context.{field}[1], msl_context.{field}[2])"


_IN_GRID = ", ".join(
    f"msl_context.threadgroup_position[{d}] * msl_context.dispatch_threads_per_threadgroup[{d}]"
    f" + msl_context.position_in_threadgroup[{d}]"
    for d in range(3)
)
#: Attribute -> (type, expression), in MLX's own order.
ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": ("uint", "(msl_context.count + 3) / 4"),
    "dispatch_simdgroups_per_threadgroup": ("uint", "(msl_context.count + 31) / 32"),
    "dispatch_threads_per_threadgroup": ("uint3", _vector("dispatch_threads_per_threadgroup")),
    "grid_origin": ("uint3", "uint3(0, 0, 0)"),
    "grid_size": ("uint3", _vector("grid")),
    "quadgroup_index_in_threadgroup": ("uint", "msl_context.index / 4"),
    "quadgroups_per_threadgroup": ("uint", "(msl_context.count + 3) / 4"),
    "simdgroup_index_in_threadgroup": ("uint", "msl_context.index / 32"),
    "simdgroups_per_threadgroup": ("uint", "(msl_context.count + 31) / 32"),
    "thread_execution_width": ("uint", "32u"),
    "thread_index_in_quadgroup": ("uint", "msl_context.index & 3"),
    "thread_index_in_simdgroup": ("uint", "msl_context.index & 31"),
    "thread_index_in_threadgroup": ("uint", "msl_context.index"),
    "thread_position_in_grid": ("uint3", f"uint3({_IN_GRID})"),
    "thread_position_in_threadgroup": ("uint3", _vector("position_in_threadgroup")),
    "threadgroup_position_in_grid": ("uint3", _vector("threadgroup_position")),
    "threadgroups_per_grid": ("uint3", _vector("threadgroups")),
    "threads_per_grid": ("uint3", _vector("grid")),
    "threads_per_simdgroup": ("uint", "32u"),
    "threads_per_threadgroup": ("uint3", _vector("threads_per_threadgroup")),
}

# Comments, and includes of Metal's own headers, which the translation replaces.
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#include <metal[^\n]*", re.DOTALL | re.MULTILINE)
# At the start of a statement, up to its semicolon, without a pointer, reference, call or initialiser: a declaration.
_THREADGROUP_DECLARATION = re.compile(
    r"(?P<before>^|[;{}:])(?P<space>\s*)threadgroup\s+(?P<rest>(?:[^;{}()=*&\[]|\[[^\]]*\])*);"
)


_EXPORTS = """extern "C" {
extern char __start_msl_tg[] __attribute__((weak));
extern char __stop_msl_tg[] __attribute__((weak));
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
__attribute__((no_sanitize_thread)) void msl_entry() { custom_kernel(@CALL@); }
__attribute__((no_sanitize_thread)) void msl_module(void** at, uint64_t** counters) {
  at[0] = __start_msl_tg; at[1] = __stop_msl_tg; at[2] = (void*)__ehdr_start; at[3] = _end;
  counters[0] = &msl_flop_count; counters[1] = &msl_special_count;
}
}"""


class CompileError(RuntimeError):
    """The source does not compile; the message holds the compiler's lines with the kernel's own line numbers."""


@dataclass(frozen=True)
class Argument:
    """What the translation needs to know of one array: name, element type, dimensions, number of elements."""

    name: str
    dtype: mx.Dtype
    ndim: int
    size: int

    @property
    def space(self) -> str:
        return "constant" if self.size < 8 else "device"


def blank_comments(source: str) -> str:
    """Comments replaced by spaces of the same shape, so that line and column numbers survive."""
    return _COMMENTS.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), source)


def mark_threadgroup(source: str, marker: str = "MSL_THREADGROUP") -> str:
    """Rewrite declarations of threadgroup memory; pointers and parameters into it are left alone."""
    source = blank_comments(source)
    previous = None
    while previous != source:  # neighbouring declarations share a semicolon, so one pass can miss every second one
        previous = source
        source = _THREADGROUP_DECLARATION.sub(rf"\g<before>\g<space>{marker} \g<rest>;", source)
    return source


def template_lines(template: Sequence[tuple[str, object]]) -> list[str]:
    """One ``using`` or ``constexpr`` per template argument; raises what MLX would refuse or mis-compile."""
    lines = []
    for name, value in template:
        if isinstance(value, bool):
            lines.append(f"constexpr bool {name} = {str(value).lower()};")
        elif isinstance(value, int):
            if value < 0:
                raise ValueError(
                    f"[metal_kernel] template argument {name}={value}: negative integers break MLX's build"
                )
            lines.append(f"constexpr int {name} = {value};")
        elif isinstance(value, mx.Dtype):
            lines.append(f"using {name} = {CPP_TYPES[value]};")
        else:
            raise ValueError(
                f"[metal_kernel] template argument {name} must be an int, a bool or a Dtype, not {value!r}"
            )
    return lines


def parameters(
    source: str, inputs: Sequence[Argument], outputs: Sequence[Argument], atomic: bool
) -> list[tuple[str, str]]:
    """Pairs (declaration with address space, call expression) in MLX's order."""
    pairs: list[tuple[str, str]] = []
    shapes_used = False
    for i, a in enumerate(inputs):
        t = CPP_TYPES[a.dtype]
        if a.ndim == 0:
            pairs.append((f"const constant {t}& {a.name}", f"*(const {t}*)msl_context.buffers[{i}]"))
            continue
        pairs.append((f"const {a.space} {t}* {a.name}", f"(const {t}*)msl_context.buffers[{i}]"))
        if f"{a.name}_shape" in source:
            pairs.append((f"const constant int* {a.name}_shape", f"(const int*)msl_context.shapes[{i}]"))
            shapes_used = True
        if f"{a.name}_strides" in source:
            pairs.append((f"const constant int64_t* {a.name}_strides", f"(const int64_t*)msl_context.strides[{i}]"))
            shapes_used = True
        if f"{a.name}_ndim" in source:
            pairs.append((f"const constant int& {a.name}_ndim", str(a.ndim)))
            shapes_used = True
    for i, a in enumerate(outputs):
        t = f"metal::atomic<{CPP_TYPES[a.dtype]}>" if atomic else CPP_TYPES[a.dtype]
        pairs.append((f"device {t}* {a.name}", f"({t}*)msl_context.buffers[{len(inputs) + i}]"))
    attributes = [(f"{t} {n}", e) for n, (t, e) in ATTRIBUTES.items() if n in source]
    if not attributes and len(outputs) > 1 and shapes_used:
        raise ValueError(
            "[metal_kernel] MLX writes a malformed signature here: mention at least one thread attribute in the source"
        )
    if len(pairs) > 31:
        raise ValueError(f"[metal_kernel] {len(pairs)} buffers, Metal allows 31")
    return pairs + attributes


def translate(
    name: str,
    source: str,
    header: str,
    inputs: Sequence[Argument],
    outputs: Sequence[Argument],
    template: Sequence[tuple[str, object]],
    atomic: bool,
) -> str:
    """The whole C++ file. Lines of the source are reported as ``<name>.metal``, of the header as ``<name>.header``."""
    pairs = parameters(source, inputs, outputs, atomic)
    lines = [
        '#include "msl.h"',
        'extern "C" __attribute__((visibility("hidden"))) uint64_t msl_flop_count = 0, msl_special_count = 0;',
        f'#line 1 "{name}.header"',
        mark_threadgroup(header),
        '#line 1 "generated"',
        "namespace {",
        *template_lines(template),
        f"void custom_kernel({', '.join(declaration for declaration, _ in pairs)}) {{",
        f'#line 1 "{name}.metal"',
        mark_threadgroup(source),
        "}",
        "}",
        '#line 1 "generated"',
        _EXPORTS.replace("@CALL@", ", ".join(call for _, call in pairs)),
    ]
    return "\n".join(lines) + "\n"
