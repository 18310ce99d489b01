from __future__ import annotations

from macspec.bench import environment
from macspec.machine import Machine, State


def test_environment_notices() -> None:
    quiet = State(power="ac", low_power_mode=False, thermal_level=0, load=0.1, swap_bytes=0)
    host = Machine(system="Darwin", usable_cores=8)
    assert environment.notices(host, quiet, quiet, [(0, 1.0), (1, 1.02), (2, 1.01)]) == []
    bad = State(power="battery", low_power_mode=True, thermal_level=2, load=7.0, swap_bytes=0)
    after = State(power="ac", swap_bytes=1 << 30)
    found = environment.notices(host, bad, after, [(0, 1.0), (1, 1.9), (2, 2.0)])
    assert [n.kind for n in found] == ["battery", "low_power", "load", "swap", "thermal", "canary"]
    assert all(n.message.endswith(".") and n.remedy.endswith(".") for n in found)
