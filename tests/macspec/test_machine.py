from __future__ import annotations

import plistlib
from dataclasses import dataclass, field

import pytest

from macspec import machine
from macspec.machine import CoreGroup, Machine, Probe, State


@dataclass
class RecordedMac(Probe):
    """Answers recorded on Macs of the public record."""

    commands: dict[tuple[str, ...], str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    cpu: str = "arm64"

    @property
    def system(self) -> str:
        return "Darwin"

    @property
    def architecture(self) -> str:
        return self.cpu

    def command(self, *words: str) -> str | None:
        return self.commands.get(words)

    def number(self, name: str) -> int | None:
        return self.numbers.get(name)

    def text(self, name: str) -> str | None:
        return self.texts.get(name)

    def swap(self) -> int | None:
        return 1 << 20

    def load(self) -> float | None:
        return 1.5

    def usable_cores(self) -> int:
        return 12


M6 = RecordedMac(
    commands={
        ("ioreg", "-rc", "AGXAccelerator", "-d", "1", "-a"): plistlib.dumps(
            [{"gpu-core-count": 10, "model": "Apple M6"}]
        ).decode(),
        ("notifyutil", "-g", machine.THERMAL_KEY): "com.apple.system.thermalpressurelevel 2\n",
        ("pmset", "-g", "batt"): "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t85%; discharging\n",
        (
            "pmset",
            "-g",
        ): "System-wide power settings:\nCurrently in use:\n sleep                1\n lowpowermode         1\n",
    },
    numbers={
        "hw.nperflevels": 3,
        "hw.perflevel0.physicalcpu": 2,
        "hw.perflevel1.physicalcpu": 4,
        "hw.perflevel2.physicalcpu": 6,
        "hw.memsize": 32 << 30,
        "kern.memorystatus_vm_pressure_level": 2,
    },
    texts={
        "hw.perflevel0.name": "Super",
        "hw.perflevel1.name": "Performance",
        "hw.perflevel2.name": "Efficiency",
        "machdep.cpu.brand_string": "Apple M6",
        "hw.model": "Mac18,5",
        "kern.osproductversion": "27.0",
        "kern.osversion": "26A428",
    },
)


def test_three_tiers_of_an_m6() -> None:
    found = machine.describe(M6)
    assert found.cores == (CoreGroup("Super", 2), CoreGroup("Performance", 4), CoreGroup("Efficiency", 6))
    assert found.gpu_cores == 10
    assert found.title == "Apple M6, 2+4+6 CPU, 10 GPU cores, 32 GB, macOS 27.0"
    assert not found.rosetta and not found.virtual


def test_state_of_a_hot_laptop_on_battery() -> None:
    assert machine.state(M6) == State(
        power="battery", low_power_mode=True, thermal_level=2, memory_pressure=2, load=1.5, swap_bytes=1 << 20
    )


def test_a_mac_that_answers_nothing_gives_no_guesses() -> None:
    mute = RecordedMac()
    assert machine.state(mute) == State(load=1.5, swap_bytes=1 << 20)
    found = machine.describe(mute)
    assert (found.chip, found.gpu_cores, found.memory_bytes, found.cores) == (None, None, None, ())
    assert found.title


def test_rosetta_and_virtual_machines_are_seen() -> None:
    translated = RecordedMac(numbers={"sysctl.proc_translated": 1}, cpu="x86_64")
    assert machine.describe(translated).rosetta
    virtual = RecordedMac(texts={"hw.model": "VirtualMac2,1", "machdep.cpu.brand_string": "Apple M1 (Virtual)"})
    assert machine.describe(virtual).virtual


@pytest.mark.parametrize(
    ("text", "level"),
    [("com.apple.system.thermalpressurelevel 0\n", 0), ("x 4", 4), ("", None), ("failed", None)],
)
def test_thermal_levels(text: str, level: int | None) -> None:
    assert machine.parse_thermal(text) == level


@pytest.mark.parametrize(
    ("text", "source"),
    [("Now drawing from 'AC Power'\n", "ac"), ("Now drawing from 'Battery Power'", "battery"), ("", None)],
)
def test_power_source(text: str, source: str | None) -> None:
    assert machine.parse_power_source(text) == source


@pytest.mark.parametrize(
    ("text", "on"),
    [(" lowpowermode         0\n", False), (" powermode            1\n", True), (" powermode 2", False), ("", None)],
)
def test_low_power_mode(text: str, on: bool | None) -> None:
    assert machine.parse_low_power(text) is on


def test_gpu_cores_from_rubbish() -> None:
    assert machine.parse_gpu_cores("not a property list") is None
    assert machine.parse_gpu_cores(plistlib.dumps([{"gpu-core-count": "ten"}]).decode()) is None


class RecordedLinux(Probe):
    files = {
        "/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC  7B13\nflags\t\t: fpu hypervisor avx2\n",
        "/proc/meminfo": "MemTotal:       24683900 kB\nSwapTotal:       2048 kB\nSwapFree:       1024 kB\n",
        "/etc/os-release": 'NAME="Debian GNU/Linux"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        "/sys/class/power_supply/AC/online": "0\n",
    }

    @property
    def system(self) -> str:
        return "Linux"

    def file(self, path: str) -> str | None:
        return self.files.get(path)


def test_linux() -> None:
    found = machine.describe(RecordedLinux())
    assert (found.chip, found.virtual) == ("AMD EPYC 7B13", True)
    assert found.memory_bytes == 24683900 * 1024
    assert found.os_version == "Debian GNU/Linux 12 (bookworm)"
    state = machine.state(RecordedLinux())
    assert (state.power, state.swap_bytes, state.thermal_level) == ("battery", 1 << 20, None)


def test_this_machine_can_be_described() -> None:
    found = machine.describe()
    assert found.usable_cores >= 1 and found.title
    assert Machine.from_wire(found.to_wire()) == found


def test_a_missing_command_is_none_not_an_error() -> None:
    assert Probe().command("no-such-command-anywhere") is None
    assert Probe().file("/no/such/file") is None
