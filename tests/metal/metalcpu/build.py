"""Compile translated kernels and the runtime; everything is cached by the hash of what went in.

A kernel goes through assembly, where a counter is added to every basic block that does floating-point arithmetic
(x86-64 only; elsewhere the arithmetic counts are not available).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from .translate import CompileError

RUNTIME = Path(__file__).parent / "runtime"
COUNTS_FLOPS = platform.machine() in ("x86_64", "AMD64")
_COMPILE = [
    "-std=c++17",
    "-O2",
    "-g1",
    "-fPIC",
    "-w",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-stack-protector",
    "-fno-threadsafe-statics",
    "-fno-tree-vectorize",
    "-fno-tree-slp-vectorize",
    "-U_FORTIFY_SOURCE",
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=thread,bounds,shift,integer-divide-by-zero",
    "--param",
    "tsan-instrument-func-entry-exit=0",
    "--param",
    "tsan-distinguish-volatile=0",
]

_ARITHMETIC = re.compile(r"\tv?(add|sub|mul|div|min|max)(ss|sd|ps|pd)\b")
_LIBM = re.compile(r"\t(?:call|jmp)\t\*?([a-z0-9_]+?)f?@(?:PLT|GOTPCREL)")
_SPECIAL_CALLS = {
    "exp",
    "exp2",
    "log",
    "log2",
    "log10",
    "log1p",
    "pow",
    "sin",
    "cos",
    "tan",
    "tanh",
    "erf",
    "sqrt",
    "atan2",
}
_BLOCK_END = re.compile(r"\t(j[a-z]+|ret|rep ret|ud2)\b")


def compiler() -> str:
    """The C++ compiler: ``METALCPU_CXX`` or g++."""
    return os.environ.get("METALCPU_CXX", "g++")


@cache
def cache_directory() -> Path:
    """Where compiled kernels are kept; ``METALCPU_CACHE`` overrides the per-user temporary folder."""
    default = Path(tempfile.gettempdir()) / f"metalcpu-{os.getuid()}"
    path = Path(os.environ.get("METALCPU_CACHE", default))
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@cache
def _compiler_version(cxx: str) -> str:
    try:
        return subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise CompileError(f"The C++ compiler '{cxx}' is not installed; the executor needs g++.") from error


def _key(*parts: str) -> str:
    cxx = compiler()
    return hashlib.sha256("\0".join((*parts, cxx, _compiler_version(cxx))).encode()).hexdigest()[:24]


def _call(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise CompileError("\n".join(errors[:12]))


@cache
def runtime_path() -> Path:
    """The shared runtime library, compiled on first use."""
    sources = [(RUNTIME / name).read_text() for name in ("runtime.cpp", "interface.h")]
    path = cache_directory() / f"libmetalcpu-{_key(*sources)}.so"
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}")
        _call(
            [compiler(), "-std=c++17", "-O2", "-g1", "-fPIC", "-shared", str(RUNTIME / "runtime.cpp"), "-o", str(fresh)]
        )
        fresh.replace(path)
    return path


@cache
def runtime_library() -> ctypes.CDLL:
    """The runtime, loaded globally so that kernels find it."""
    return ctypes.CDLL(str(runtime_path()), mode=ctypes.RTLD_GLOBAL)


def _flags() -> list[str]:
    return [*_COMPILE, *(["-mno-red-zone"] if COUNTS_FLOPS else [])]


@cache
def _precompiled() -> Path:
    """A folder with the precompiled ``msl.h``, which is most of a kernel's compile time."""
    folder = cache_directory() / f"headers-{_key(_headers(), *_flags())}"
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        fresh.mkdir(exist_ok=True)
        _call([compiler(), *_flags(), "-x", "c++-header", str(RUNTIME / "msl.h"), "-o", str(fresh / "msl.h.gch")])
        try:
            fresh.replace(folder)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return folder


@cache
def _headers() -> str:
    return "".join((RUNTIME / name).read_text() for name in ("msl.h", "types.h", "interface.h"))


def count_arithmetic(assembly: str) -> str:
    """Add counters to x86-64 assembly (AT&T): per basic block one increment that changes no flag and no register.

    Additions, subtractions, multiplications, divisions, minima and maxima count 1, fused multiply-adds 2; calls of
    transcendental functions and square roots are counted separately. Functions named ``msl_nocount`` are left alone:
    the runtime accounts for simdgroup operations itself.
    """
    lines = assembly.split("\n")
    inserts: dict[int, tuple[int, int]] = {}
    first, flops, specials, counting = -1, 0, 0, True

    def close() -> None:
        nonlocal first, flops, specials
        if first >= 0 and (flops or specials):
            inserts[first] = (flops, specials)
        first, flops, specials = -1, 0, 0

    for i, line in enumerate(lines):
        if line and not line[0].isspace():
            close()
            if not line.startswith(".") and line.endswith(":"):
                counting = "msl_nocount" not in line
            continue
        if not counting:
            continue
        gained, special = 0, 0
        if match := _ARITHMETIC.match(line):
            gained = {"ps": 4, "pd": 2}.get(match.group(2), 1)
        elif line.startswith("\tsqrt"):
            special = 1
        elif match := _LIBM.match(line):
            if match.group(1) == "fma":
                gained = 2
            elif match.group(1) in _SPECIAL_CALLS:
                special = 1
        if gained or special:
            first = i if first < 0 else first
            flops += gained
            specials += special
        if _BLOCK_END.match(line):
            close()
    close()
    out = []
    for i, line in enumerate(lines):
        if i in inserts:
            for symbol, amount in zip(("msl_flop_count", "msl_special_count"), inserts[i], strict=True):
                if amount:
                    out += [
                        "\tpushq\t%rax",
                        f"\tmovq\t{symbol}(%rip), %rax",
                        f"\tleaq\t{amount}(%rax), %rax",
                        f"\tmovq\t%rax, {symbol}(%rip)",
                        "\tpopq\t%rax",
                    ]
        out.append(line)
    return "\n".join(out)


@cache
def build(code: str) -> tuple[ctypes.CDLL, Path]:
    """Compile one translated kernel (or take it from the cache) and load it. Raises CompileError."""
    runtime_library()
    path = cache_directory() / f"{_key(code, _headers(), Path(__file__).read_text(), str(runtime_path()))}.so"
    if not path.exists():
        work = path.with_suffix(f".{os.getpid()}")
        source, assembly, fresh = work.with_suffix(".cpp"), work.with_suffix(".s"), work.with_suffix(".new")
        source.write_text(code)
        try:
            include = ["-I", str(_precompiled()), "-I", str(RUNTIME)]
            _call([compiler(), *_flags(), *include, "-S", str(source), "-o", str(assembly)])
            if COUNTS_FLOPS:
                assembly.write_text(count_arithmetic(assembly.read_text()))
            _call([compiler(), "-shared", str(assembly), "-o", str(fresh), str(runtime_path()), "-lm"])
            fresh.replace(path)
        finally:
            source.unlink(missing_ok=True)
            assembly.unlink(missing_ok=True)
    return ctypes.CDLL(str(path)), path


def locate(path: Path, offset: int) -> str:
    """``file.metal:line`` of an address in a compiled kernel, or an empty string where binutils is missing."""
    try:
        done = subprocess.run(["addr2line", "-e", str(path), hex(offset)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    where = done.stdout.strip().rsplit("/", 1)[-1].split(" ")[0]
    return "" if where.startswith("?") else where
