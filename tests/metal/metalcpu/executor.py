"""``metal_kernel`` with the calling convention of ``mx.fast.metal_kernel``, executed on the CPU.

from metalcpu import metal_kernel, options
kernel = metal_kernel("double", ["a"], ["o"], "uint i = thread_position_in_grid.x; o[i] = 2 * a[i];")
with options(schedule=1, strict=True):
    (o,) = kernel(inputs=[a], grid=(64, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(64,)], output_dtypes=[a.dtype])
print(kernel.report)
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np

from .build import COUNTS_FLOPS, build, locate, runtime_library
from .translate import Argument, translate

PAGE = 4096
GUARD_PAGES = 4
POISON = 0xFF  # not-a-number in every float type, -1 or the maximum in integers
THREADGROUP_LIMIT = 32 * 1024
_NUMPY = {
    mx.bool_: np.bool_,
    mx.uint8: np.uint8,
    mx.int8: np.int8,
    mx.uint16: np.uint16,
    mx.int16: np.int16,
    mx.uint32: np.uint32,
    mx.int32: np.int32,
    mx.uint64: np.uint64,
    mx.int64: np.int64,
    mx.float16: np.float16,
    mx.float32: np.float32,
}


class KernelFault(RuntimeError):
    """The kernel did something Metal forbids or leaves undefined: bounds, races, divergence, uninitialised memory."""


@dataclass(frozen=True)
class Options:
    """How to execute.

    schedule: 0 runs threads in order, 1 in reverse, 2 and above in a seeded random order that changes at every step.
    strict: a simdgroup operation that not every lane of its simdgroup reaches is a fault.
    max_threads: threads per threadgroup allowed (a pipeline's own limit can be below Metal's 1024).
    races: conflicting accesses without a barrier between them are faults; off for kernels whose threads knowingly
        write the same value to the same place.
    require_outputs: an output byte nobody wrote is a fault (unless ``init_value`` was given).
    """

    schedule: int = 0
    strict: bool = False
    max_threads: int = 1024
    races: bool = True
    require_outputs: bool = False


@dataclass(frozen=True)
class Traffic:
    """Bytes of one buffer that were read and written: in total, and counting every byte once."""

    read: int
    read_distinct: int
    written: int
    written_distinct: int
    size: int


@dataclass(frozen=True)
class Report:
    """What one launch did.

    ``buffers`` holds inputs and outputs by name (shape and stride vectors are not counted). ``flops`` and ``specials``
    are None where the machine cannot count them.
    """

    name: str
    threads: int
    threadgroups: int
    threads_per_threadgroup: int
    threadgroup_bytes: int
    threadgroup_bytes_read: int
    threadgroup_bytes_written: int
    barriers: int
    collectives: int
    divergent: int
    atomics: int
    flops: int | None
    specials: int | None
    buffers: dict[str, Traffic] = field(default_factory=dict)

    @property
    def bytes_read(self) -> int:
        """Global bytes read, every access counted."""
        return sum(b.read for b in self.buffers.values())

    @property
    def bytes_written(self) -> int:
        """Global bytes written, every access counted."""
        return sum(b.written for b in self.buffers.values())


_DEFAULTS = Options()
_options: ContextVar[Options] = ContextVar("metalcpu_options", default=_DEFAULTS)
_collectors: ContextVar[tuple[list[Report], ...]] = ContextVar("metalcpu_collectors", default=())


@contextmanager
def options(**changes: Any) -> Iterator[Options]:
    """Change the options of every kernel executed inside the block."""
    token = _options.set(replace(_options.get(), **changes))
    try:
        yield _options.get()
    finally:
        _options.reset(token)


@contextmanager
def collect() -> Iterator[list[Report]]:
    """The reports of every kernel executed inside the block, in order."""
    reports: list[Report] = []
    token = _collectors.set((*_collectors.get(), reports))
    try:
        yield reports
    finally:
        _collectors.reset(token)


@contextmanager
def installed() -> Iterator[None]:
    """Let other libraries' kernels run here: patches MLX's ``metal_kernel`` and ``is_available`` for the block."""
    with (
        mock.patch.object(mx.fast, "metal_kernel", metal_kernel),
        mock.patch.object(mx.metal, "is_available", lambda: True),
    ):
        yield


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("output", ctypes.c_uint32),
        ("initialised", ctypes.c_uint32),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("tg_begin", ctypes.c_void_p),
        ("tg_end", ctypes.c_void_p),
        ("module_begin", ctypes.c_void_p),
        ("module_end", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_uint64),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("buffer_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("threadgroup", ctypes.c_uint32 * 3),
        ("schedule", ctypes.c_uint32),
        ("strict", ctypes.c_uint32),
        ("races", ctypes.c_uint32),
        ("pointers", ctypes.c_void_p),
        ("shapes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
    ]


_COUNTERS = (  # in the runtime's order
    "threads",
    "threadgroups",
    "collectives",
    "divergent",
    "barriers",
    "atomics",
    "extra_flops",
    "tg_read",
    "tg_written",
)


class _Report(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_uint64) for n in _COUNTERS),
        ("error", ctypes.c_char * 512),
        ("error_address", ctypes.c_void_p),
    ]


def _bytes_of(array: mx.array, contiguous: bool) -> tuple[np.ndarray, tuple[int, ...]]:
    """The memory a kernel sees for an input, as bytes, and the strides in elements."""
    if contiguous:
        array = mx.contiguous(array)
    mx.eval(array)
    if array.dtype == mx.bfloat16:
        if contiguous or array.ndim == 0:
            host = np.array(mx.contiguous(array).view(mx.uint16))
        else:  # numpy has no bfloat16: the view shares memory and strides when the last axis is dense
            host = np.asarray(memoryview(array.view(mx.uint16)))
    else:
        host = np.asarray(memoryview(array)) if array.ndim else np.array(array)
    itemsize = host.itemsize
    strides = tuple(s // itemsize for s in host.strides)
    if any(s < 0 for s in strides):
        host = np.ascontiguousarray(host)
        strides = tuple(s // itemsize for s in host.strides)
    span = (1 + sum((n - 1) * s for n, s in zip(host.shape, strides, strict=True))) * itemsize if host.size else 0
    flat = np.frombuffer(ctypes.string_at(host.ctypes.data, span), np.uint8) if span else np.zeros(0, np.uint8)
    return flat, strides


class _Arena:
    """Guarded memory for the buffers of one launch: whole pages, guard pages around each, poison everywhere."""

    def __init__(self, sizes: Sequence[int]) -> None:
        pages = [GUARD_PAGES]
        for size in sizes:
            pages.append(pages[-1] + -(-max(size, 1) // PAGE) + GUARD_PAGES)
        self.bytes = pages[-1] * PAGE
        self._map = mmap.mmap(-1, self.bytes)
        self.view = np.frombuffer(self._map, np.uint8)
        self.view[:] = POISON
        self.base = self.view.ctypes.data
        self.offsets = [p * PAGE for p in pages[:-1]]


class ExecutedKernel:
    """One kernel; call it like the object ``mx.fast.metal_kernel`` returns. ``report`` describes the last launch."""

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: dict[str, str] | None = None,
    ) -> None:
        if not output_names:
            raise ValueError("[metal_kernel] Must specify at least one output.")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"[metal_kernel] '{name}' is not an identifier")
        unknown = set(compile_options or {}) - {"math_mode"}
        if unknown:
            raise ValueError(f"[metal_kernel] Unknown compile options: {sorted(unknown)}")
        self.name, self.source, self.header = name, source, header
        self.input_names, self.output_names = list(input_names), list(output_names)
        self.contiguous, self.atomic = ensure_row_contiguous, atomic_outputs
        self.report: Report | None = None

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, object]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        del stream  # there is one CPU
        if len(inputs) != len(self.input_names):
            raise ValueError(f"[metal_kernel] Expected {len(self.input_names)} inputs, received {len(inputs)}")
        if not len(output_shapes) == len(output_dtypes) == len(self.output_names):
            raise ValueError(f"[metal_kernel] Expected {len(self.output_names)} output shapes and dtypes")
        if len(grid) != 3 or len(threadgroup) != 3:
            raise ValueError("[metal_kernel] grid and threadgroup must have 3 elements")
        if min(*grid, *threadgroup) < 1:
            raise ValueError(f"[metal_kernel] grid {grid} and threadgroup {threadgroup} must be positive")
        chosen = _options.get()
        clipped = tuple(min(t, g) for t, g in zip(threadgroup, grid, strict=True))
        if (count := int(np.prod(clipped))) > chosen.max_threads:
            raise ValueError(f"[metal_kernel] {count} threads per threadgroup, the limit is {chosen.max_threads}")
        arrays = [a if isinstance(a, mx.array) else mx.array(a) for a in inputs]
        takes = [Argument(n, a.dtype, a.ndim, a.size) for n, a in zip(self.input_names, arrays, strict=True)]
        shapes = [tuple(int(n) for n in s) for s in output_shapes]
        gives = [
            Argument(n, d, len(s), int(np.prod(s)))
            for n, d, s in zip(self.output_names, output_dtypes, shapes, strict=True)
        ]
        code = translate(self.name, self.source, self.header, takes, gives, list(template or []), self.atomic)
        if verbose:
            print(code)
        return self._launch(code, arrays, gives, shapes, grid, clipped, init_value, chosen)

    def _launch(
        self,
        code: str,
        arrays: list[mx.array],
        gives: list[Argument],
        shapes: list[tuple[int, ...]],
        grid: tuple[int, ...],
        threadgroup: tuple[int, ...],
        init_value: float | None,
        chosen: Options,
    ) -> list[mx.array]:
        library, path = build(code)
        at, counters = (ctypes.c_void_p * 4)(), (ctypes.POINTER(ctypes.c_uint64) * 2)()
        library.msl_module(at, counters)
        tg_bytes = (at[1] or 0) - (at[0] or 0)
        if tg_bytes > THREADGROUP_LIMIT:
            raise ValueError(
                f"[metal_kernel] {self.name} needs {tg_bytes} bytes of threadgroup memory, "
                f"the limit is {THREADGROUP_LIMIT}"
            )
        counters[0][0] = counters[1][0] = 0

        memory = [_bytes_of(a, self.contiguous) for a in arrays]
        sizes = [m.size for m, _ in memory] + [g.size * g.dtype.size for g in gives]
        vectors = [np.array(a.shape or (1,), np.int32) for a in arrays]
        strides = [np.array(s or (0,), np.int64) for _, s in memory]
        names = [*self.input_names, *self.output_names]
        extra = [(f"{n}_shape", v.view(np.uint8)) for n, v in zip(self.input_names, vectors, strict=True)]
        extra += [(f"{n}_strides", v.view(np.uint8)) for n, v in zip(self.input_names, strides, strict=True)]
        arena = _Arena(sizes + [data.size for _, data in extra])
        initial = dict(zip(arena.offsets, [data for data, _ in memory], strict=False))
        initial |= dict(zip(arena.offsets[len(sizes) :], [data for _, data in extra], strict=True))
        out_offsets = arena.offsets[len(arrays) : len(sizes)]
        if init_value is not None:
            initial |= {
                o: _bytes_of(mx.full((g.size,), init_value, g.dtype), True)[0]
                for g, o in zip(gives, out_offsets, strict=True)
            }
        for offset, data in initial.items():
            arena.view[offset : offset + data.size] = data
        regions = list(
            zip(arena.offsets, sizes + [d.size for _, d in extra], names + [n for n, _ in extra], strict=True)
        )
        table = (_Buffer * len(regions))(
            *(
                _Buffer(
                    arena.base + offset,
                    size,
                    name.encode(),
                    int(len(arrays) <= i < len(sizes)),
                    int(init_value is not None),
                )
                for i, (offset, size, name) in enumerate(regions)
            )
        )

        def addresses(offsets: list[int]) -> Any:
            return (ctypes.c_void_p * max(1, len(offsets)))(*(arena.base + o for o in offsets))

        shape_offsets, stride_offsets = (
            arena.offsets[len(sizes) : len(sizes) + len(arrays)],
            arena.offsets[len(sizes) + len(arrays) :],
        )
        tables = [addresses(o) for o in (arena.offsets[: len(sizes)], shape_offsets, stride_offsets)]
        launch = _Launch(
            ctypes.cast(library.msl_entry, ctypes.c_void_p),
            at[0],
            at[1],
            at[2],
            at[3],
            arena.base,
            arena.bytes,
            table,
            len(regions),
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*threadgroup),
            chosen.schedule,
            int(chosen.strict),
            int(chosen.races),
            *(ctypes.cast(t, ctypes.c_void_p) for t in tables),
        )
        raw, traffic = _Report(), (ctypes.c_uint64 * (4 * len(regions)))()
        failed = runtime_library().msl_run(ctypes.byref(launch), ctypes.byref(raw), traffic)
        if failed:
            where = locate(path, raw.error_address - at[2] - 1) if raw.error_address else ""
            raise KernelFault(f"{self.name}{f' ({where})' if where else ''}: {raw.error.decode(errors='replace')}")
        buffers = {n: Traffic(*traffic[4 * i : 4 * i + 4], sizes[i]) for i, n in enumerate(names)}
        self.report = Report(
            name=self.name,
            threads=raw.threads,
            threadgroups=raw.threadgroups,
            threads_per_threadgroup=int(np.prod(threadgroup)),
            threadgroup_bytes=tg_bytes,
            threadgroup_bytes_read=raw.tg_read,
            threadgroup_bytes_written=raw.tg_written,
            barriers=raw.barriers,
            collectives=raw.collectives,
            divergent=raw.divergent,
            atomics=raw.atomics,
            flops=int(counters[0][0]) + raw.extra_flops if COUNTS_FLOPS else None,
            specials=int(counters[1][0]) if COUNTS_FLOPS else None,
            buffers=buffers,
        )
        for reports in _collectors.get():
            reports.append(self.report)
        if chosen.require_outputs and init_value is None:
            for g in gives:
                t = buffers[g.name]
                if t.written_distinct < t.size:
                    raise KernelFault(
                        f"{self.name}: {t.size - t.written_distinct} of {t.size} bytes of output '{g.name}' "
                        "were never written"
                    )
        results = []
        for g, shape, offset in zip(gives, shapes, out_offsets, strict=True):
            data = arena.view[offset : offset + g.size * g.dtype.size].copy()
            if g.dtype == mx.bfloat16:
                results.append(mx.array(data.view(np.uint16)).view(mx.bfloat16).reshape(shape))
            else:
                results.append(mx.array(data.view(_NUMPY[g.dtype])).reshape(shape))
        return results


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: dict[str, str] | None = None,
) -> ExecutedKernel:
    """Drop-in for ``mx.fast.metal_kernel``."""
    return ExecutedKernel(
        name, input_names, output_names, source, header, ensure_row_contiguous, atomic_outputs, compile_options
    )
