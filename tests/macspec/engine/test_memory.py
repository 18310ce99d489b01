"""Forecasts, admission, limits, the lock, and the reading of device errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_lm.models.cache import make_prompt_cache

from tiny_models import parameters, tiny_model

# isort: split
import mlx.core as mx

from macspec.engine import memory
from macspec.engine.caches import TargetCache
from macspec.engine.caches.leaves import PASS_ROWS
from macspec.engine.forecast import STEP, CacheCost, Forecast, prefill_bytes, size
from macspec.engine.gpu_lock import GpuLock
from macspec.engine.memory import Limit, MemoryGuard, check_load, device_failure
from macspec.errors import BusyError, EngineDiedError, MemoryRefusedError

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def read_prompt(model, length: int, chunk: int) -> TargetCache:
    cache = TargetCache(make_prompt_cache(model))
    for start in range(0, length, chunk):
        rows = min(chunk, length - start)
        with cache.append(rows):
            model(mx.array([[1] * rows]), cache=cache.layers)
        mx.eval(cache.arrays())
    return cache


def test_a_prompt_stays_within_the_forecast() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
    model, config = tiny_model("llama", **sizes)
    weights = sum(array.nbytes for _, array in parameters(model))
    cost = CacheCost.of(read_prompt(model, 1, 1))
    mx.clear_cache()
    others = mx.get_active_memory() - weights
    mx.reset_peak_memory()
    cache = read_prompt(model, 2048, 128)
    measured = mx.get_peak_memory() - others
    forecast = weights + cost.nbytes(2048) + prefill_bytes(config, 128, 2048, 4, fused=False)
    assert forecast == pytest.approx(measured, rel=0.15)
    assert cache.length == 2048


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3_5", "falcon_h1", "deepseek_v3", "llama4"])
def test_cache_cost_matches_the_caches(family: str) -> None:
    model, _ = tiny_model(family)
    cost = CacheCost.of(read_prompt(model, 3, 3))
    held = read_prompt(model, 700, 100).nbytes
    spare = STEP * cost.per_position + sum(row * (PASS_ROWS + STEP) for row, _ in cost.windows)
    assert held <= cost.nbytes(700) <= held + spare


def test_the_cost_from_a_configuration() -> None:
    assert CacheCost.from_config(LLAMA_8B).nbytes(8192) == 32 * 2 * 8 * 128 * 2 * (8192 + STEP)
    sliding = {**LLAMA_8B, "sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"] * 16}
    assert CacheCost.from_config(sliding).nbytes(8192) == 16 * 4096 * (8192 + STEP) + 16 * 4096 * 1024
    assert CacheCost.from_config({"text_config": LLAMA_8B}, 1.0).nbytes(256) == 32 * 2048 * 512
    latent = {"num_hidden_layers": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert CacheCost.from_config(latent).per_position == 2 * 576 * 2


def test_a_model_that_does_not_fit_is_refused_with_every_part_named() -> None:
    limit = Limit(10 * 10**9, "the working set Metal recommends")
    assert check_load(8 * 10**9, 0, LLAMA_8B, limit).fits
    with pytest.raises(MemoryRefusedError) as caught:
        check_load(16 * 10**9, 10**9, LLAMA_8B, limit)
    for part in ("16.0 GB for the weights", "1.0 GB for the drafter", "KV cache of 4,096 tokens", "Metal", "10.0 GB"):
        assert part in caught.value.message
    assert "smaller model" in caught.value.message
    with pytest.raises(MemoryRefusedError, match="without its drafter"):
        check_load(8 * 10**9, 2 * 10**9, LLAMA_8B, limit)


def guard(limit: int, evict=lambda wanted: 0, **options) -> MemoryGuard:
    cost = CacheCost.from_config(LLAMA_8B)
    return MemoryGuard(Limit(limit, "the limit"), cost, LLAMA_8B, weights=8 * 10**9, fused=True, evict=evict, **options)


def test_a_request_that_cannot_fit_is_told_what_would() -> None:
    keeper = guard(10 * 10**9)
    assert keeper.admit(8192).context == 8192
    with pytest.raises(MemoryRefusedError) as caught:
        keeper.admit(100_000)
    possible = keeper.longest_context(100_000)
    assert f"about {possible:,} tokens" in caught.value.message and "100,000 tokens" in caught.value.message
    assert keeper.forecast(possible).fits and not keeper.forecast(possible + 1).fits
    with pytest.raises(MemoryRefusedError, match="no request fits"):
        guard(10**9).admit(10)


def test_the_drafters_context_counts() -> None:
    assert (
        guard(10**12, drafter_per_position=1000).forecast(5000).cache - guard(10**12).forecast(5000).cache == 5 * 10**6
    )


def test_pressure_evicts_before_anything_is_refused(monkeypatch) -> None:
    asked: list[int] = []
    active = 9_500_000_000
    monkeypatch.setattr(mx, "get_active_memory", lambda: active)
    keeper = guard(10 * 10**9, evict=lambda wanted: asked.append(wanted) or wanted)
    forecast = keeper.admit(8192)
    assert asked == [active + forecast.cache + forecast.activations - 10 * 10**9] and asked[0] > 0
    asked.clear()
    active = 8_000_000_000
    keeper.admit(256)
    assert not asked


def test_a_limit_that_moves_is_asked_again() -> None:
    limits = iter([Limit(10**12, "now"), Limit(10**9, "later")])
    keeper = MemoryGuard(lambda: next(limits), CacheCost(1000), LLAMA_8B, weights=2 * 10**9, fused=True)
    keeper.admit(1000)
    with pytest.raises(MemoryRefusedError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "longest_context", lambda most: 0)
        keeper.admit(1000)


def test_the_limit_of_this_machine_is_plausible() -> None:
    limit = memory.memory_limit()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 10**7 < limit.nbytes <= 1.1 * physical and limit.source
    assert 10**7 < memory.footprint() <= physical


def test_metals_recommendation_is_read_not_computed(monkeypatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 12345})
    assert memory.memory_limit() == Limit(12345, "the working set Metal recommends")


def test_a_container_limit_counts(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("4000000\n")
    monkeypatch.setattr(mx, "device_info", dict)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 100)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: 10)
    monkeypatch.setattr(memory, "_CGROUPS", ((str(tmp_path / "max"), str(tmp_path / "current")),))
    assert memory.memory_limit() == Limit(1_000_110, "the memory the container has left")
    (tmp_path / "max").write_text("max\n")
    assert memory.memory_limit().source != "the memory the container has left"


def test_the_cache_of_freed_buffers_is_bounded_and_nothing_is_wired(monkeypatch) -> None:
    wired: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", wired.append)
    before = mx.set_cache_limit(0)
    try:
        memory.configure(Limit(10**9, ""))
        assert mx.set_cache_limit(0) == 10**8
        memory.configure(Limit(10**12, ""))
        assert mx.set_cache_limit(0) == 2 * 10**9
    finally:
        mx.set_cache_limit(before)
    assert not wired


def test_sizes_read_well() -> None:
    assert [size(n) for n in (0, 12_345_678, 999_000_000, 1_000_000_000)] == ["0 MB", "12 MB", "999 MB", "1.0 GB"]
    assert "for the drafter" not in Forecast(1, 0, 1, 1, 1, 1).sentence()


@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        ("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", False),
        ("Ignored (for causing errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)", True),
        ("Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)", False),
    ],
)
def test_device_errors_are_told_apart(text: str, fatal: bool) -> None:
    failure = device_failure(RuntimeError(f"[METAL] Command buffer execution failed: {text}"))
    assert failure is not None and failure.fatal is fatal and failure.sentence.endswith((".", ")"))
    assert isinstance(failure.error(), EngineDiedError) is fatal
    assert isinstance(failure.error(), MemoryRefusedError) is ("OutOfMemory" in text)


def test_running_out_of_buffers_is_a_device_error() -> None:
    failure = device_failure(RuntimeError("[metal::malloc] Resource limit (499000) exceeded."))
    assert failure is not None and not failure.fatal


def test_other_errors_are_no_device_errors() -> None:
    assert device_failure(RuntimeError("shapes do not match")) is None


HOLDER = """
import sys
from pathlib import Path
from macspec.engine.gpu_lock import GpuLock
with GpuLock(Path(sys.argv[1]), enabled=True):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_cannot_hold_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "gpu.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {holder.pid}"):
            GpuLock(path, enabled=True).acquire()
        GpuLock(path, enabled=False).acquire()
        holder.kill()
    with GpuLock(path, enabled=True) as lock:
        lock.acquire()
        assert path.read_text() == str(os.getpid()) and path.stat().st_mode & 0o777 == 0o600
    with GpuLock(path, enabled=True):
        pass


def test_the_lock_is_for_macs_unless_asked_for(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert not GpuLock(tmp_path / "lock").enabled
    monkeypatch.setattr(sys, "platform", "darwin")
    assert GpuLock(tmp_path / "lock").enabled
