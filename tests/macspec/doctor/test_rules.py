from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from macspec.doctor.facts import Facts, MlxFacts, PairFacts, ProfileFacts
from macspec.doctor.rules import Finding, break_even, drafter_mismatch, examine, gpu_generation, version
from macspec.machine import CoreGroup, Machine, State
from macspec.scheduler.ladder import Ladder


def ladder(verify: tuple[float, ...], draft: float = 1.0) -> Ladder:
    return Ladder(contexts=(0,), verify=(verify,), draft=(draft,))


TARGET = {"num_hidden_layers": 36, "hidden_size": 2560, "vocab_size": 151936}
DRAFTER = {
    "block_size": 16,
    "hidden_size": 2560,
    "num_target_layers": 36,
    "vocab_size": 151936,
    "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]},
}
GOOD = ProfileFacts("/c/p.json", "qwen3-4b", "dflash", 3600.0, ladder=ladder((10.0, 10.5, 11, 11.5, 12)))
MAC = Facts(
    machine=Machine(
        system="Darwin",
        os_version="27.0",
        chip="Apple M5 Max",
        cores=(CoreGroup("Super", 6), CoreGroup("Performance", 12)),
        usable_cores=18,
        gpu_cores=40,
        memory_bytes=64 << 30,
        architecture="arm64",
    ),
    state=State(power="ac", low_power_mode=False, thermal_level=0, memory_pressure=1, load=1.0, swap_bytes=0),
    python=(3, 12),
    packages={"macspec": "0.1.0", "mlx": "0.32.4", "mlx-metal": "0.32.4", "mlx-lm": "0.32.2"},
    wheel_tag="macosx_26_0_arm64",
    mlx=MlxFacts(metal=True, gflops=900.0, architecture="applegpu_g17s", working_set=48 << 30),
    wired_limit_mb=0,
    cache_folder="/Users/x/Library/Caches/macspec",
    free_bytes=200 << 30,
    pair=PairFacts("qwen3-4b", "/m/t", "", TARGET, "/m/d", "", DRAFTER),
    profiles=(GOOD,),
)
LINUX = dataclasses.replace(
    MAC,
    machine=Machine(system="Linux", chip="AMD EPYC", usable_cores=2, memory_bytes=24 << 30, architecture="x86_64"),
    wheel_tag=None,
    mlx=MlxFacts(blas="/x/libopenblas.so.0", gflops=120.0),
)


def having(facts: Facts, **changes: Any) -> Facts:
    return dataclasses.replace(facts, **changes)


def on(facts: Facts, **changes: Any) -> Facts:
    return dataclasses.replace(facts, machine=dataclasses.replace(facts.machine, **changes))


def bad(facts: Facts) -> list[Finding]:
    return [finding for finding in examine(facts) if finding.level != "ok"]


@pytest.mark.parametrize("facts", [MAC, LINUX], ids=["mac", "linux"])
def test_a_sound_machine_has_nothing_to_mend(facts: Facts) -> None:
    assert bad(facts) == []


#: Situation, its level, what must be named as the cause, and what as the remedy.
SITUATIONS: dict[str, tuple[Facts, str, str, str]] = {
    "no Metal": (having(MAC, mlx=MlxFacts(metal=False)), "broken", "no Metal GPU", "logged-in user"),
    "reference BLAS": (
        having(LINUX, mlx=MlxFacts(blas=None, gflops=2.4)),
        "problem",
        "reference BLAS (2.4 GFLOP/s)",
        "ngsolve-openblas",
    ),
    "corrupt ladder": (
        having(MAC, profiles=(ProfileFacts("/c/p.json", error="/c/p.json is not JSON"),)),
        "problem",
        "is not JSON",
        "macspec profile --reprofile",
    ),
    "drafter of another target": (
        having(MAC, pair=PairFacts("qwen3-8b", "/m/t", "", {**TARGET, "hidden_size": 4096}, "/m/d", "", DRAFTER)),
        "broken",
        "width of 2560 and this one has 4096",
        "macspec models list",
    ),
    "drafter unreadable": (
        having(MAC, pair=PairFacts("qwen3-4b", "/m/t", "", TARGET, "/m/d", "/m/d/config.json is missing", {})),
        "broken",
        "config.json is missing",
        "Reinstall",
    ),
    "low disk": (having(MAC, free_bytes=5 << 30), "problem", "5.0 GB free", "models rm"),
    "full disk": (having(MAC, free_bytes=100 << 20), "broken", "nearly full: 100 MB", "Free some space"),
    "old macOS": (on(MAC, os_version="13.6"), "broken", "macOS 13.6 is too old", "Software Update"),
    "Rosetta": (on(MAC, rosetta=True, architecture="x86_64"), "broken", "translated by Rosetta", "arm64 Python"),
    "Intel Mac": (on(MAC, architecture="x86_64"), "broken", "Intel processor", ""),
    "no compiler": (having(LINUX, compiler=False), "problem", "no C++ compiler", "apt install g++"),
    "low power": (
        having(MAC, state=dataclasses.replace(MAC.state, low_power_mode=True)),
        "problem",
        "Low Power Mode is on",
        "System Settings > Battery",
    ),
    "hot": (having(MAC, state=dataclasses.replace(MAC.state, thermal_level=2)), "problem", "pressure is heavy", "cool"),
    "old MLX": (
        having(MAC, packages={**MAC.packages, "mlx": "0.31.2"}),
        "broken",
        "MLX 0.31.2 aborts",
        "pip install -U 'mlx>=0.32.3'",
    ),
    "MLX missing": (
        having(MAC, packages={"macspec": "0.1.0", "mlx-lm": "0.32.2"}, mlx=None),
        "broken",
        "mlx is not installed",
        "pip install mlx",
    ),
    "MLX broken": (
        having(MAC, mlx=None, mlx_error="ImportError: no libmlx.dylib"),
        "broken",
        "cannot be imported: ImportError",
        "force-reinstall",
    ),
    "MLX wrong": (having(MAC, mlx=MlxFacts(metal=True, right=False)), "broken", "product wrongly", "Reinstall"),
    "wheel without matrix units": (
        having(MAC, wheel_tag="macosx_15_0_arm64"),
        "problem",
        "build for macosx_15_0_arm64",
        "SYSTEM_VERSION_COMPAT=0",
    ),
    "macOS before the matrix units": (on(MAC, os_version="26.1"), "problem", "matrix units", "26.2 or later"),
    "wired limit by hand": (having(MAC, wired_limit_mb=60000), "note", "set to 60000 by hand", "wired_limit_mb=0"),
    "cache not writable": (having(MAC, cache_writable=False), "broken", "cannot be written", "XDG_CACHE_HOME"),
    "not measured": (having(MAC, profiles=()), "note", "not measured", "macspec profile"),
    "old ladder": (
        having(MAC, profiles=(dataclasses.replace(GOOD, age_s=400 * 86400.0),)),
        "note",
        "400 days old",
        "--reprofile",
    ),
    "doubtful ladder": (
        having(MAC, profiles=(dataclasses.replace(GOOD, doubtful=True),)),
        "note",
        "busy or hot machine",
        "--reprofile",
    ),
    "parked for good": (
        having(MAC, profiles=(dataclasses.replace(GOOD, ladder=ladder((10.0, 30.0, 50.0, 70.0))),)),
        "problem",
        "stay parked",
        "no drafter",
    ),
    "parked mostly": (
        having(MAC, profiles=(dataclasses.replace(GOOD, ladder=ladder((10.0, 18.5, 27.5, 36.5), 0.2)),)),
        "problem",
        "parked most of the time",
        "plain decoding",
    ),
    "model damaged": (
        having(MAC, pair=PairFacts("x", "/m/t", "/m/t/config.json is not JSON", {}, None)),
        "broken",
        "is not JSON",
        "Fetch the model again",
    ),
    "model absent": (
        having(MAC, pair=PairFacts("x", None, "x is not on this machine")),
        "broken",
        "not on this",
        "macspec models pull x",
    ),
    "no such folder": (
        having(MAC, pair=PairFacts("/m/x", None, "/m/x is not on this machine")),
        "broken",
        "not on this",
        "Check the path",
    ),
    "no drafter": (having(MAC, pair=PairFacts("x", "/m/t", "", TARGET)), "note", "plain speed", "models list"),
    "kernel failed": (
        having(MAC, kernels={"verify_qmm 8": {"outcome": "wrong", "reason": "off"}}),
        "note",
        "switched off because they failed here, first verify_qmm 8",
        "report",
    ),
    "kernel file lost": (having(MAC, kernels_error="k.json is not JSON"), "problem", "verdicts are lost", "next start"),
    "little memory": (on(MAC, memory_bytes=4 << 30), "problem", "4.0 GB of memory", "1.5 B parameters"),
    "virtual": (on(MAC, virtual=True), "problem", "virtual Mac", "Mac itself"),
    "old Python": (having(MAC, python=(3, 9)), "broken", "Python 3.9 is too old", "3.11 or later"),
    "short of memory": (
        having(MAC, state=dataclasses.replace(MAC.state, memory_pressure=4)),
        "problem",
        "short of memory",
        "smaller model",
    ),
    "busy": (having(MAC, state=dataclasses.replace(MAC.state, load=15.0)), "note", "load is 15.0 on 18", "Close them"),
    "battery": (having(MAC, state=dataclasses.replace(MAC.state, power="battery")), "note", "battery", "Plug it in"),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_situations_are_named_with_a_remedy(name: str) -> None:
    facts, level, cause, remedy = SITUATIONS[name]
    found = [f for f in bad(facts) if cause in f.message]
    assert len(found) == 1, bad(facts)
    assert found[0].level == level
    assert remedy in found[0].remedy
    # Nothing else is blamed for it.
    assert len(bad(facts)) == 1


def test_break_even_against_a_case_by_hand() -> None:
    # Depth 1 costs 1 + 11 = 12 where a plain pass costs 10: 1 + p must exceed 1.2.
    needed = break_even(dataclasses.replace(GOOD, ladder=ladder((10.0, 11.0))))
    assert needed == pytest.approx(0.2, abs=1e-4)


def test_deeper_rounds_lower_the_break_even() -> None:
    shallow = break_even(dataclasses.replace(GOOD, ladder=ladder((10.0, 10.5), 5.0)))
    deep = break_even(dataclasses.replace(GOOD, ladder=ladder((10.0, 10.5, 11.0, 11.5), 5.0)))
    assert shallow is not None and deep is not None and deep < shallow


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: {**d, "num_target_layers": 28}, "expects 28 layers and this one has 36"),
        (lambda d: {**d, "num_target_layers": None, "dflash_config": {"target_layer_ids": [1, 40]}}, "reads layer 40"),
        (lambda d: {**d, "vocab_size": 32000}, "expects 32000 words"),
        (lambda d: {**d, "dflash_config": {"target_hidden_size": 4096}}, "width of 4096"),
        (lambda d: {**d, "dflash_config": "rubbish", "hidden_size": "big"}, ""),
    ],
)
def test_drafter_mismatches(change: Callable[[dict[str, Any]], dict[str, Any]], said: str) -> None:
    found = drafter_mismatch(TARGET, change(DRAFTER))
    assert said in found and bool(said) == bool(found)


def test_multimodal_targets_keep_their_numbers_inside() -> None:
    assert drafter_mismatch({"text_config": TARGET}, DRAFTER) == ""
    assert "layers" in drafter_mismatch({"text_config": {**TARGET, "num_hidden_layers": 3}}, DRAFTER)


def test_versions_and_generations() -> None:
    assert version("26.4.1") == (26, 4, 1) and version(None) == () and version("rubbish") == ()
    assert [gpu_generation(f"applegpu_{name}") for name in ("g13g", "g17s", "g17p", "g18g", "x")] == [13, 17, 16, 18, 0]
