"""What a profile belongs to: change any of it and the times change."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from macspec.machine import Machine, State

#: How each part is named in a sentence.
NAMES = {
    "chip": "the chip",
    "cores": "the number of usable cores",
    "gpu_cores": "the number of GPU cores",
    "memory": "the memory",
    "os": "the operating system",
    "macspec": "macspec",
    "mlx": "MLX",
    "python": "Python",
    "blas": "the BLAS library",
    "target": "the model",
    "target_revision": "the model's revision",
    "target_bytes": "the model's size or quantisation",
    "dtype": "the number type",
    "drafter": "the drafter",
    "drafter_revision": "the drafter's revision",
    "depth": "the drafter's block",
    "kernels": "the kernel set",
    "low_power": "low power mode",
}


def identity(engine: Any, machine: Machine, state: State) -> dict[str, Any]:
    """Everything a ladder of this engine on this machine depends on, as JSON values."""
    from macspec_models import BLAS

    target, drafter = engine.target, engine.drafter
    return {
        "chip": machine.chip or machine.model or machine.architecture,
        "cores": machine.usable_cores,
        "gpu_cores": machine.gpu_cores,
        "memory": machine.memory_bytes,
        "os": f"{machine.system} {machine.os_build or machine.os_version or platform.release()}",
        "macspec": metadata.version("macspec"),
        "mlx": metadata.version("mlx"),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "blas": None if BLAS is None else BLAS.rsplit("/", 1)[-1],
        "target": target.name,
        "target_revision": target.revision,
        "target_bytes": target.nbytes,
        "dtype": str(target.dtype).removeprefix("mlx.core."),
        "drafter": getattr(drafter, "name", None) or drafter.kind,
        "drafter_revision": f"{getattr(drafter, 'revision', '')}:{getattr(drafter, 'nbytes', 0)}",
        "depth": drafter.max_depth,
        "kernels": str(getattr(engine, "kernels", "mlx")),
        "low_power": bool(state.low_power_mode),
    }


def slug(values: Mapping[str, Any]) -> str:
    """File name stem of the pair on this chip and in this power mode; other differences replace the file."""
    parts = {name: values.get(name) for name in ("chip", "target", "target_bytes", "dtype", "drafter", "low_power")}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{_plain(values.get('target'))}-{_plain(values.get('drafter'))}-{digest}"


def difference(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing that differs, as a clause, or "" when all is the same."""
    for name, words in NAMES.items():
        if stored.get(name) != now.get(name):
            return f"{words} changed from {stored.get(name)} to {now.get(name)}"
    return ""


def _plain(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(value or "none")).strip("-")[:40] or "none"
