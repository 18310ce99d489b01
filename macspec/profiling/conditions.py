"""Whether the machine is fit to be measured: busy, hot or throttled machines give curves that mislead later."""

from __future__ import annotations

from macspec.machine import Machine, State

#: Load per usable core from which the machine counts as busy. This process itself adds little before it measures.
BUSY = 0.5


def warnings(machine: Machine, before: State, after: State | None = None) -> list[str]:
    """One sentence for each reason to doubt a measurement made under these conditions."""
    found = []
    if before.load is not None and before.load > BUSY * machine.usable_cores:
        found.append(
            f"The machine is busy (load {before.load:.1f} on {machine.usable_cores} cores), so the times are too high; "
            "close other programs and run: macspec profile --reprofile"
        )
    level = max((state.thermal_level or 0) for state in (before, after or before))
    if level > 0:
        found.append(
            "The machine is hot and slows itself down, so the times are too high; "
            "let it cool and run: macspec profile --reprofile"
        )
    if before.low_power_mode:
        found.append("Low power mode is on; this profile is used only while it is.")
    elif before.power == "battery":
        found.append("The machine runs on battery; some Macs are slower then.")
    return found


def doubtful(machine: Machine, before: State, after: State | None = None) -> bool:
    """Whether a profile measured like this has to be measured again when the machine is at rest."""
    hot = max((state.thermal_level or 0) for state in (before, after or before)) > 0
    busy = before.load is not None and before.load > BUSY * machine.usable_cores
    return hot or busy
