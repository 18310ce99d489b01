"""What machine this is and what state it is in, without root and without MLX.

Everything is read through a `Probe`, so the parsers are tested on recorded outputs. A value that cannot be read is
None, never a guess.
"""

from __future__ import annotations

import ctypes
import os
import platform
import plistlib
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from macspec.request import Wire

THERMAL_KEY = "com.apple.system.thermalpressurelevel"
THERMAL_NAMES = {0: "nominal", 1: "moderate", 2: "heavy", 3: "trapping", 4: "sleeping"}
COMMAND_TIMEOUT_S = 5.0


class Probe:
    """Reads the machine. Tests replace it by recorded answers."""

    @property
    def system(self) -> str:
        """``Darwin`` or ``Linux``."""
        return platform.system()

    @property
    def architecture(self) -> str:
        """Architecture this Python was built for."""
        return platform.machine()

    def command(self, *words: str) -> str | None:
        """Output of a command, or None when it is missing, fails or hangs."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
            return None
        return done.stdout if done.returncode == 0 else None

    def file(self, path: str) -> str | None:
        """Text of a small file, or None."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def text(self, name: str) -> str | None:
        """A string from ``sysctl``."""
        raw = _sysctl(name)
        return None if raw is None else raw.rstrip(b"\0").decode(errors="replace")

    def number(self, name: str) -> int | None:
        """An integer of 4 or 8 bytes from ``sysctl``."""
        raw = _sysctl(name)
        return int.from_bytes(raw, "little", signed=len(raw) == 4) if raw is not None and len(raw) in (4, 8) else None

    def swap(self) -> int | None:
        """Bytes of swap in use on macOS."""
        raw = _sysctl("vm.swapusage")
        return int.from_bytes(raw[16:24], "little") if raw is not None and len(raw) >= 24 else None

    def load(self) -> float | None:
        """One-minute load average."""
        try:
            return os.getloadavg()[0]
        except OSError:
            return None

    def usable_cores(self) -> int:
        """Processors this process may use."""
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1


def _sysctl(name: str) -> bytes | None:
    """Raw value by ``sysctlbyname``: microseconds, where a subprocess costs milliseconds."""
    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return None
    size = ctypes.c_size_t(0)
    key = name.encode()
    if call(key, None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    buffer = ctypes.create_string_buffer(size.value)
    if call(key, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return buffer.raw[: size.value]


@dataclass(frozen=True, slots=True)
class CoreGroup(Wire):
    """Cores of one kind; macOS names the tiers itself and a chip may have one, two or three."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Machine(Wire):
    """What does not change during a run."""

    system: str
    os_version: str | None = None
    os_build: str | None = None
    model: str | None = None
    chip: str | None = None
    cores: tuple[CoreGroup, ...] = field(default_factory=tuple)
    usable_cores: int = 1
    gpu_cores: int | None = None
    memory_bytes: int | None = None
    architecture: str = ""
    python: str = ""
    #: This Python is x86-64 and runs translated on Apple Silicon.
    rosetta: bool = False
    virtual: bool = False

    @property
    def title(self) -> str:
        """One line for a card: chip, cores, memory, system."""
        parts = [self.chip or self.model or self.architecture]
        if self.cores:
            parts.append("+".join(str(group.count) for group in self.cores) + " CPU")
        if self.gpu_cores:
            parts.append(f"{self.gpu_cores} GPU cores")
        if self.memory_bytes:
            parts.append(f"{round(self.memory_bytes / 2**30)} GB")
        name = {"Darwin": "macOS"}.get(self.system, "")
        parts.append(" ".join(part for part in (name, self.os_version or self.system) if part))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class State(Wire):
    """What changes: read before and after a run."""

    #: ``ac``, ``battery`` or None where there is neither or nobody knows.
    power: str | None = None
    low_power_mode: bool | None = None
    #: 0 nominal to 4 sleeping, as in `THERMAL_NAMES`.
    thermal_level: int | None = None
    #: 1 normal, 2 warning, 4 critical.
    memory_pressure: int | None = None
    load: float | None = None
    swap_bytes: int | None = None


def describe(probe: Probe | None = None) -> Machine:
    """The machine, from cheap reads only."""
    source = probe or Probe()
    return _describe_mac(source) if source.system == "Darwin" else _describe_linux(source)


def state(probe: Probe | None = None) -> State:
    """The state now; takes a few tens of milliseconds on macOS (three small commands)."""
    source = probe or Probe()
    if source.system != "Darwin":
        memory = parse_meminfo(source.file("/proc/meminfo") or "")
        swap = None
        if "SwapTotal" in memory and "SwapFree" in memory:
            swap = memory["SwapTotal"] - memory["SwapFree"]
        return State(power=_linux_power(source), load=source.load(), swap_bytes=swap)
    return State(
        power=parse_power_source(source.command("pmset", "-g", "batt") or ""),
        low_power_mode=parse_low_power(source.command("pmset", "-g") or ""),
        thermal_level=thermal_level(source),
        memory_pressure=source.number("kern.memorystatus_vm_pressure_level"),
        load=source.load(),
        swap_bytes=source.swap(),
    )


def thermal_level(probe: Probe | None = None) -> int | None:
    """Thermal pressure now; None off macOS."""
    source = probe or Probe()
    if source.system != "Darwin":
        return None
    return parse_thermal(source.command("notifyutil", "-g", THERMAL_KEY) or "")


def parse_thermal(text: str) -> int | None:
    """``com.apple.system.thermalpressurelevel 0`` gives 0."""
    words = text.split()
    return int(words[-1]) if words and words[-1].isdigit() else None


def parse_power_source(text: str) -> str | None:
    """From ``pmset -g batt``."""
    found = re.search(r"Now drawing from '([^']+)'", text)
    if found is None:
        return None
    return {"AC Power": "ac", "Battery Power": "battery", "UPS Power": "ac"}.get(found.group(1))


def parse_low_power(text: str) -> bool | None:
    """From ``pmset -g``; newer systems say ``powermode 1`` instead of ``lowpowermode 1``."""
    found = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", text, re.MULTILINE)
    return None if found is None else found.group(1) == "1"


def parse_gpu_cores(text: str) -> int | None:
    """From the property list of ``ioreg -rc AGXAccelerator -d 1 -a``."""
    try:
        entries = plistlib.loads(text.encode())
    except (plistlib.InvalidFileException, ValueError, OverflowError):
        return None
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, dict) and isinstance(entry.get("gpu-core-count"), int):
            return int(entry["gpu-core-count"])
    return None


def parse_meminfo(text: str) -> dict[str, int]:
    """``/proc/meminfo`` in bytes."""
    found = re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    return {name: int(amount) * 1024 for name, amount in found}


def parse_cpuinfo(text: str) -> str | None:
    """Processor name from ``/proc/cpuinfo``."""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return None if found is None else " ".join(found.group(1).split())


def parse_os_release(text: str) -> str | None:
    """Distribution name from ``/etc/os-release``."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?', text, re.MULTILINE)
    return None if found is None else found.group(1)


def _describe_mac(probe: Probe) -> Machine:
    tiers = probe.number("hw.nperflevels") or 0
    cores = []
    for tier in range(tiers):
        count = probe.number(f"hw.perflevel{tier}.physicalcpu")
        if count:
            cores.append(CoreGroup(probe.text(f"hw.perflevel{tier}.name") or f"tier {tier}", count))
    if not cores and (count := probe.number("hw.physicalcpu")):
        cores.append(CoreGroup("cores", count))
    model = probe.text("hw.model")
    chip = probe.text("machdep.cpu.brand_string")
    return Machine(
        system="Darwin",
        # platform.mac_ver() answers 16.0 on macOS 26 to a Python that was linked against an older SDK.
        os_version=probe.text("kern.osproductversion"),
        os_build=probe.text("kern.osversion"),
        model=model,
        chip=chip,
        cores=tuple(cores),
        usable_cores=probe.usable_cores(),
        gpu_cores=parse_gpu_cores(probe.command("ioreg", "-rc", "AGXAccelerator", "-d", "1", "-a") or ""),
        memory_bytes=probe.number("hw.memsize"),
        architecture=probe.architecture,
        python=platform.python_version(),
        rosetta=probe.number("sysctl.proc_translated") == 1,
        virtual="Virtual" in (model or "") or "Virtual" in (chip or ""),
    )


def _describe_linux(probe: Probe) -> Machine:
    usable = probe.usable_cores()
    info = probe.file("/proc/cpuinfo") or ""
    return Machine(
        system=probe.system,
        os_version=parse_os_release(probe.file("/etc/os-release") or ""),
        os_build=platform.release(),
        chip=parse_cpuinfo(info),
        cores=(CoreGroup("cores", usable),),
        usable_cores=usable,
        memory_bytes=parse_meminfo(probe.file("/proc/meminfo") or "").get("MemTotal"),
        architecture=probe.architecture,
        python=platform.python_version(),
        virtual=re.search(r"^flags\s*:.*\bhypervisor\b", info, re.MULTILINE) is not None,
    )


def _linux_power(probe: Probe) -> str | None:
    for name in ("AC", "AC0", "ACAD", "ADP0", "ADP1"):
        online = probe.file(f"/sys/class/power_supply/{name}/online")
        if online is not None:
            return "ac" if online.strip() == "1" else "battery"
    return None
