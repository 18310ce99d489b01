"""A fast BLAS for MLX on Linux, loaded before MLX is.

The Linux wheel of MLX carries the reference BLAS. A library that exports the same symbols and is loaded globally first
takes its place: float32 products become some thirty times faster. macOS needs none of this.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import sysconfig
from pathlib import Path

import platformdirs


@functools.cache
def preload() -> str | None:
    """Load OpenBLAS globally, once, before ``mlx.core`` is imported.

    Returns:
        The library's path, or None when there is none to load, it is switched off by ``MACSPEC_BLAS=reference``, or
        MLX was imported already (its symbols are bound by then).
    """
    if sys.platform != "linux" or "mlx.core" in sys.modules or os.environ.get("MACSPEC_BLAS") == "reference":
        return None
    packages = Path(sysconfig.get_path("purelib"))
    bundled = next((packages / "ngsolve_openblas").glob("libopenblas*.so"), None)
    for candidate in (bundled, Path("libopenblas.so.0")):
        if candidate is None:
            continue
        try:
            ctypes.CDLL(str(candidate), mode=ctypes.RTLD_GLOBAL)
            return str(candidate)
        except OSError:
            continue
    return _load_with_fortran(packages, bundled)


def _load_with_fortran(packages: Path, bundled: Path | None) -> str | None:
    """Load the bundled OpenBLAS on a machine without the Fortran runtime it names.

    MLX's own wheel carries that runtime under another file name. The loader looks for needed libraries in the folder a
    library was opened from, so a folder with both under the right names is enough.
    """
    runtime = next((packages / "mlx_cpu.libs").glob("libgfortran*"), None)
    if bundled is None or runtime is None:
        return None
    folder = Path(platformdirs.user_cache_dir("macspec")) / "blas"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, target in (("libopenblas.so.0", bundled), ("libgfortran.so.5", runtime)):
            link = folder / name
            if not link.exists() or link.resolve() != target.resolve():
                fresh = folder / f"{name}.{os.getpid()}"
                fresh.symlink_to(target)
                fresh.replace(link)
        for support in (packages / "mlx_cpu.libs").glob("libquadmath*"):
            ctypes.CDLL(str(support))
        library = str(folder / "libopenblas.so.0")
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        return library
    except OSError:
        return None
