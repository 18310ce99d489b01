"""Limits on memory, and what happens near them: first unused prefixes go, then the request is refused. Never swap.

Memory is never wired: `mx.set_wired_limit` with buffers coming and going is the reported trigger of kernel panics on
macOS. MLX's own cache of freed buffers, by default as large as the working set, gets a limit. What counts is active
plus cached bytes, and the process's footprint as the system sees it; peak memory leaves the cache out.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from macspec.engine.forecast import CacheCost, Forecast, prefill_bytes, size
from macspec.errors import EngineDiedError, MacspecError, MemoryRefusedError

#: Most bytes of freed buffers MLX may hold on to, and the share of the limit when that is less.
CACHE_LIMIT = 2 * 10**9
CACHE_SHARE = 0.1
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
#: Apple's `rusage_info_v4`: a 16-byte id, then 64-bit counters; `ri_phys_footprint` is at byte 72.
_RUSAGE_V4, _RUSAGE_BYTES, _FOOTPRINT_AT = 4, 512, 72


@dataclass(frozen=True)
class Limit:
    """The most bytes this process should hold on the device, and where the number comes from."""

    nbytes: int
    source: str


def memory_limit() -> Limit:
    """What this machine lets one process hold: read from Metal on a Mac, from the kernel and the container on Linux."""
    info = mx.device_info()
    recommended = info.get("max_recommended_working_set_size")
    if recommended:
        return Limit(int(recommended), "the working set Metal recommends")
    held = mx.get_active_memory() + mx.get_cache_memory()
    found = [Limit(available + held, "the memory available") for available in _available()]
    found += [Limit(left + held, "the memory the container has left") for left in _container_left()]
    if not found:
        return Limit(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine's memory")
    return min(found, key=lambda limit: limit.nbytes)


def configure(limit: Limit) -> None:
    """Bound MLX's cache of freed buffers. Wires nothing."""
    mx.set_cache_limit(int(min(CACHE_LIMIT, CACHE_SHARE * limit.nbytes)))


def footprint() -> int:
    """Physical footprint of this process in bytes (Activity Monitor's number; resident set on Linux); 0 if unknown."""
    if sys.platform == "darwin":
        buffer = (ctypes.c_uint64 * (_RUSAGE_BYTES // 8))()
        failed = ctypes.CDLL(None).proc_pid_rusage(os.getpid(), _RUSAGE_V4, ctypes.byref(buffer))
        return 0 if failed else int(buffer[_FOOTPRINT_AT // 8])
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def check_load(
    weights: int, drafter: int, config: Mapping[str, Any], limit: Limit, *, context: int = 4096, chunk: int = 512
) -> Forecast:
    """Forecast a model before it is loaded, at a modest context.

    Args:
        weights, drafter: bytes of the weight files.

    Raises:
        MemoryRefusedError: it does not fit; the message says what takes how much and what would fit.
    """
    cost = CacheCost.from_config(config)
    forecast = Forecast(
        weights,
        drafter,
        cost.nbytes(context),
        prefill_bytes(config, chunk, context, 2, fused=True),
        limit.nbytes,
        context,
        limit.source,
    )
    if not forecast.fits:
        way_out = "choose a smaller model or one quantised to fewer bits"
        if drafter and forecast.total - drafter <= limit.nbytes:
            way_out = "run it without its drafter, or " + way_out
        raise MemoryRefusedError(f"This model does not fit: {forecast.sentence()}. To go on, {way_out}.")
    return forecast


class MemoryGuard:
    """Admits requests of one loaded pair while they fit."""

    def __init__(
        self,
        limit: Limit | Callable[[], Limit],
        cost: CacheCost,
        config: Mapping[str, Any],
        *,
        weights: int,
        drafter: int = 0,
        drafter_per_position: int = 0,
        chunk: int = 512,
        bytes_per_value: int = 2,
        fused: bool | None = None,
        evict: Callable[[int], int] = lambda wanted: 0,
    ) -> None:
        """
        Args:
            limit: fixed, or asked at every admission (Linux, where other processes move it).
            cost: of the target's caches.
            weights, drafter: bytes of the loaded weights.
            drafter_per_position: bytes the drafter's context grows by.
            chunk: rows of a prefill pass.
            bytes_per_value: of activations.
            fused: whether attention runs as one kernel; None works it out from device and head size.
            evict: frees at least so many bytes of what is only kept for later; returns how many it freed.
        """
        self._limit: Callable[[], Limit] = limit if callable(limit) else lambda: limit
        self._cost, self._config, self._evict = cost, config, evict
        self._weights, self._drafter = weights, drafter
        self._per_position = drafter_per_position
        self._chunk, self._bytes = chunk, bytes_per_value
        self._fused = _fused(config) if fused is None else fused

    def forecast(self, context: int) -> Forecast:
        """Bytes of this pair with one request at ``context`` positions."""
        limit = self._limit()
        cache = self._cost.nbytes(context) + self._per_position * context
        activations = prefill_bytes(self._config, self._chunk, context, self._bytes, self._fused)
        return Forecast(self._weights, self._drafter, cache, activations, limit.nbytes, context, limit.source)

    def admit(self, context: int) -> Forecast:
        """Let a request in that will hold ``context`` positions, prompt and answer together.

        Unused prefixes and freed buffers make room first.

        Raises:
            MemoryRefusedError: it cannot fit; the message names each part, the limit, and the context that would fit.
        """
        forecast = self.forecast(context)
        if forecast.fits:
            self._make_room(forecast)
            return forecast
        possible = self.longest_context(context)
        would = f"about {possible:,} tokens of prompt and answer would fit" if possible else "no request fits"
        raise MemoryRefusedError(
            f"This request does not fit in memory: {forecast.sentence()}. Here {would}; shorten it, lower the number "
            "of tokens to generate, keep the KV cache in fewer bits, or choose a smaller model."
        )

    def longest_context(self, most: int) -> int:
        """The longest context up to ``most`` that fits; 0 when none does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.forecast(middle).fits:
                low = middle
            else:
                high = middle - 1
        return low

    def _make_room(self, forecast: Forecast) -> None:
        """Release what is kept for later if the request would otherwise push the process over the limit."""
        grows = forecast.cache + forecast.activations
        over = mx.get_active_memory() + grows - forecast.limit
        if over > 0:
            self._evict(over)
        if mx.get_active_memory() + mx.get_cache_memory() + grows > forecast.limit:
            mx.clear_cache()


@dataclass(frozen=True)
class DeviceFailure:
    """A GPU error: every array since the last successful wait is undefined, caches included."""

    sentence: str
    #: The process will never be served again and must be left.
    fatal: bool
    #: Memory ran out.
    memory: bool = False

    def error(self) -> MacspecError:
        """What to raise: `EngineDiedError` when the process must be left."""
        kind = EngineDiedError if self.fatal else MemoryRefusedError if self.memory else MacspecError
        return kind(self.sentence)


def device_failure(error: BaseException) -> DeviceFailure | None:
    """What a ``RuntimeError`` from MLX says about the device; None when it is no device error."""
    text = " ".join(str(error).split())
    if "Command buffer execution failed" not in text and "metal::malloc" not in text:
        return None
    fatal = bool(re.search(r"SubmissionsIgnored|\(0*0?4[,)]|code=4\b", text, re.IGNORECASE))
    if fatal:
        return DeviceFailure("The GPU no longer accepts work from this process; the engine has to restart.", True)
    if "nsufficient Memory" in text or "OutOfMemory" in text or "metal::malloc" in text:
        return DeviceFailure("The GPU ran out of memory; the request was dropped. Try a shorter one.", False, True)
    return DeviceFailure(f"The GPU reported an error and the request was dropped: {text[:200]}", False)


def _fused(config: Mapping[str, Any]) -> bool:
    text = config.get("text_config", config)
    heads = int(text.get("num_attention_heads") or 1)
    dim = int(text.get("head_dim") or int(text.get("hidden_size") or 0) // heads)
    return bool(mx.default_device() == mx.Device(mx.gpu)) and dim in (64, 80, 128)


def _available() -> list[int]:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(kib) * 1024 for kib in re.findall(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)]


def _container_left() -> list[int]:
    for limit, used in _CGROUPS:
        try:
            most = Path(limit).read_text(encoding="ascii").strip()
            if most != "max":
                return [max(int(most) - int(Path(used).read_text(encoding="ascii")), 0)]
        except (OSError, ValueError):
            continue
    return []


__all__ = [
    "DeviceFailure",
    "Limit",
    "MemoryGuard",
    "check_load",
    "configure",
    "device_failure",
    "footprint",
    "memory_limit",
    "size",
]
