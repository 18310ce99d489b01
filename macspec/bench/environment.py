"""What the machine's state says about a run's figures, as typed warnings."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

from macspec.bench.notices import Notice, notice
from macspec.machine import THERMAL_NAMES, Machine, State

#: The fixed piece of work may vary this much between its fastest and its median time.
CANARY_SPREAD = 1.15
#: Load average per usable core, before the run, above which something else was running.
BUSY = 0.35
SWAP_GROWTH = 64 << 20
PACKAGES = ("macspec", "mlx", "mlx-lm", "mlx-metal", "mlx-cpu", "numpy", "transformers")


def notices(machine: Machine, before: State, after: State, canary: Sequence[tuple[float, float]]) -> list[Notice]:
    """Warnings about power, heat, load and paging."""
    found = []
    if "battery" in (before.power, after.power):
        found.append(notice("battery", "The machine ran on battery."))
    if before.low_power_mode or after.low_power_mode:
        found.append(notice("low_power", "Low Power Mode was on."))
    if before.load is not None and before.load > BUSY * machine.usable_cores:
        found.append(notice("load", f"The load was {before.load:.1f} on {machine.usable_cores} cores before the run."))
    if before.swap_bytes is not None and after.swap_bytes is not None:
        grown = after.swap_bytes - before.swap_bytes
        if grown > SWAP_GROWTH:
            found.append(notice("swap", f"Swap grew by {grown / 2**20:.0f} MB during the run."))
    if before.thermal_level:
        name = THERMAL_NAMES.get(before.thermal_level, str(before.thermal_level))
        found.append(notice("thermal", f"Thermal pressure was {name} before the run began."))
    times = sorted(ms for _, ms in canary)
    if len(times) >= 3 and times[len(times) // 2] > CANARY_SPREAD * times[0]:
        share = 100 * (times[len(times) // 2] / times[0] - 1)
        found.append(notice("canary", f"A fixed piece of work took {share:.0f} % longer than at its best, typically."))
    return found


def versions() -> dict[str, str]:
    """Versions of what decides the speed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
