"""Keeps what `macspec.engine.row_noise` measured, one JSON file for all pairs beside the kernel verdicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macspec.engine.row_noise import RowNoise
from macspec.profiling.store import ProfileStore
from macspec.scheduler.store import write_atomically

SCHEMA = 1
FILE = "row-noise.json"
#: Parts of `macspec.profiling.identity.identity` that a row's bits depend on.
PARTS = ("chip", "gpu_cores", "os", "mlx", "blas", "target", "target_revision", "target_bytes", "dtype", "depth")


class RowNoiseStore:
    """The measurements of one user.

    Args:
        folder: None takes the one of profiles.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or ProfileStore().folder) / FILE

    def load(self, identity: Mapping[str, Any]) -> RowNoise | None:
        """What was measured with this identity, None when nothing was or the file is damaged."""
        entry = self._entries().get(_key(identity))
        if entry is None:
            return None
        try:
            return RowNoise(
                largest=float(entry["largest"]),
                compared=int(entry["compared"]),
                max_rows=int(entry["max_rows"]),
                density=float(entry["density"]),
                tokens=int(entry["tokens"]),
                near_ties=int(entry["near_ties"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def save(self, identity: Mapping[str, Any], noise: RowNoise) -> None:
        """Keep a measurement and what answers added to it."""
        entries = self._entries()
        entries[_key(identity)] = {**identity, **vars(noise), "bound": noise.bound, "rate": noise.rate}
        write_atomically(self.path, json.dumps({"schema": SCHEMA, "measured": entries}, indent=1))

    def _entries(self) -> dict[str, Any]:
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            return dict(values["measured"]) if values["schema"] == SCHEMA else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def noise_identity(pair: Mapping[str, Any], kernels: str, kv_bits: int | None) -> dict[str, Any]:
    """What a measurement belongs to, from a pair's identity."""
    return {**{name: pair.get(name) for name in PARTS}, "kernels": kernels, "kv_bits": kv_bits}


def _key(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()[:16]
