"""What doctor looks at. Collecting never fails: what cannot be read is None or a sentence."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from macspec import machine
from macspec.machine import Machine, Probe, State
from macspec.scheduler.ladder import Ladder, LadderError
from macspec_models.disk import existing, free_bytes
from macspec_models.hub import hub_cache, local_folder

PACKAGES = ("macspec", "mlx", "mlx-metal", "mlx-cpu", "mlx-lm", "numpy", "huggingface-hub", "transformers", "textual")
MLX_TIMEOUT_S = 60.0
MAX_SMALL_FILE = 16 << 20
#: Written by `macspec.profiling.row_noise`, which needs MLX and so is not imported here.
ROW_NOISE_FILE = "row-noise.json"

#: Run in a process of its own: importing MLX can abort, hang, or print from C++.
_LOOK_AT_MLX = """
import json, sys, time
import macspec_models
import mlx.core as mx
out = {"blas": macspec_models.BLAS, "metal": bool(mx.metal.is_available())}
out["device"] = {k: v for k, v in dict(mx.device_info()).items() if isinstance(v, (str, int))}
a = mx.ones((512, 512)); b = a @ a; mx.eval(b)
times = []
for _ in range(3):
    begun = time.perf_counter()
    mx.eval(a @ a)
    times.append(time.perf_counter() - begun)
best = min(times)
out["gflops"] = 2 * 512**3 / best / 1e9
out["right"] = abs(float(b.sum()) - 512.0**3) < 1.0
print("\\n@@" + json.dumps(out))
"""


@dataclass(frozen=True, slots=True)
class MlxFacts:
    """What MLX says of itself."""

    metal: bool = False
    #: The fast BLAS that was loaded on Linux, or None.
    blas: str | None = None
    gflops: float = 0.0
    #: Whether a small product came out right.
    right: bool = True
    architecture: str = ""
    working_set: int | None = None
    max_buffer: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """One stored cost ladder, or why it cannot be used."""

    path: str
    target: str = ""
    drafter: str = ""
    age_s: float | None = None
    doubtful: bool = False
    ladder: Ladder | None = None
    error: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class PairFacts:
    """A target and drafter as their config files describe them."""

    target: str
    #: Where it lies; None when it is not here.
    target_path: str | None = None
    target_error: str = ""
    target_config: dict[str, Any] = field(default_factory=dict)
    drafter_path: str | None = None
    drafter_error: str = ""
    drafter_config: dict[str, Any] = field(default_factory=dict)
    #: Whether drafts are looked up in the text alone, which needs no files.
    lookup: bool = False
    #: A known model's name when its own drafter is not here.
    missing_drafter_of: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the rules look at."""

    machine: Machine
    state: State = field(default_factory=State)
    python: tuple[int, int] = (3, 11)
    packages: dict[str, str] = field(default_factory=dict)
    #: Platform tag of the installed ``mlx-metal`` wheel, such as ``macosx_26_0_arm64``.
    wheel_tag: str | None = None
    mlx: MlxFacts | None = None
    mlx_error: str = ""
    compiler: bool = True
    #: ``iogpu.wired_limit_mb``; 0 is the system's own rule.
    wired_limit_mb: int | None = None
    cache_folder: str = ""
    cache_writable: bool = True
    free_bytes: int | None = None
    #: Bytes per kind of stored file.
    stored: dict[str, int] = field(default_factory=dict)
    pair: PairFacts | None = None
    profiles: tuple[ProfileFacts, ...] = ()
    #: Rows of the kernel verdict file: case to outcome, reason and ratio.
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernels_error: str = ""
    #: Measurements of exact mode: model, dtype, largest logit difference and expected near-ties per token.
    row_noise: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Sources:
    """Where facts come from; tests put their own in."""

    probe: Probe = field(default_factory=Probe)
    cache: Path = field(default_factory=lambda: Path(platformdirs.user_cache_dir("macspec", appauthor=False)))
    hub: Path = field(default_factory=hub_cache)
    look_at_mlx: Callable[[], tuple[MlxFacts | None, str]] = field(default_factory=lambda: look_at_mlx)
    which: Callable[[str], str | None] = shutil.which
    now: Callable[[], float] = time.time


def collect(sources: Sources, model: str | None = None, drafter: str | None = None) -> Facts:
    """Look at everything; ``model`` and ``drafter`` are names or folders, None the embedded pair."""
    mlx, mlx_error = sources.look_at_mlx()
    return Facts(
        machine=machine.describe(sources.probe),
        state=machine.state(sources.probe),
        python=(sys.version_info[0], sys.version_info[1]),
        packages=_packages(),
        wheel_tag=_wheel_tag(),
        mlx=mlx,
        mlx_error=mlx_error,
        compiler=any(sources.which(name) for name in ("g++", "c++", "clang++")),
        wired_limit_mb=sources.probe.number("iogpu.wired_limit_mb") if sources.probe.system == "Darwin" else None,
        cache_folder=str(sources.cache),
        cache_writable=_writable(sources.cache),
        free_bytes=free_bytes(sources.cache),
        stored={
            "models": size_of(sources.cache / "models"),
            "profiles": size_of(sources.cache / "profiles"),
            "hub": size_of(sources.hub),
        },
        pair=read_pair(model, drafter),
        profiles=tuple(read_profiles(sources.cache / "profiles", sources.now())),
        row_noise=_row_noise(sources.cache / "profiles" / ROW_NOISE_FILE),
        **_kernels(sources.cache / "profiles" / "kernels.json"),
    )


def look_at_mlx() -> tuple[MlxFacts | None, str]:
    """Ask MLX in a process of its own; the second value says why it could not be asked."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK_AT_MLX], capture_output=True, text=True, timeout=MLX_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"importing MLX did not end within {MLX_TIMEOUT_S:.0f} s"
    except OSError as error:
        return None, str(error)
    return parse_mlx(done.stdout, done.stderr, done.returncode)


def parse_mlx(output: str, errors: str, code: int) -> tuple[MlxFacts | None, str]:
    """What the child process printed, or the last line of its complaint."""
    _, mark, text = output.rpartition("\n@@")
    if code != 0 or not mark:
        lines = [line for line in errors.splitlines() if line.strip()]
        ended = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
        return None, lines[-1].strip() if lines else ended
    try:
        values = json.loads(text)
        device = values["device"]
        return MlxFacts(
            metal=values["metal"],
            blas=values["blas"],
            gflops=float(values["gflops"]),
            right=values["right"],
            architecture=str(device.get("architecture", "")),
            working_set=device.get("max_recommended_working_set_size"),
            max_buffer=device.get("max_buffer_length"),
        ), ""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"its answer was not understood ({error})"


def read_pair(model: str | None, drafter: str | None) -> PairFacts:
    """Config files of a pair, without loading weights or asking a network."""
    from macspec_models import embedded, registry
    from macspec_models.embedded.convert import gguf_path, is_complete
    from macspec_models.errors import ModelError

    if model is not None and model != embedded.NAME:
        folder = _folder(model)
        error = "" if folder else f"{model} is not on this machine"
        config, target_error = read_config(folder) if folder else ({}, error)
    else:
        model = embedded.NAME
        base = Path(platformdirs.user_cache_dir("macspec")) / "models"
        found = [path for path in sorted(base.glob("smollm2-135m-*")) if path.is_dir()]
        whole = [path for path in found if is_complete(path)]
        folder = whole[0] if whole else None
        config, target_error = read_config(folder) if folder else ({}, "")
        if folder is None:
            try:
                gguf_path()
                target_error = "damaged and will be unpacked again" if found else ""
            except ModelError as problem:
                target_error = problem.message
    asked, _ = registry.split_drafter(drafter)
    known = registry.find(model)
    name = asked or (known.name if known else "none")
    needs_files = name not in ("none", "lookup")
    drafter_folder: Path | None = None
    if name == embedded.NAME:
        drafter_folder = embedded.drafter_folder()
    elif needs_files:
        drafter_folder = _folder(name, part="drafter")
    absent = needs_files and drafter_folder is None
    drafter_config, drafter_error = read_config(drafter_folder) if drafter_folder else ({}, "")
    if asked and absent:
        drafter_error = f"{asked} is not on this machine"
    return PairFacts(
        target=model,
        target_path=str(folder) if folder else None,
        target_error=target_error,
        target_config=config,
        drafter_path=str(drafter_folder) if drafter_folder else None,
        drafter_error=drafter_error,
        drafter_config=drafter_config,
        lookup=name == "lookup",
        missing_drafter_of=name if absent and not asked else "",
    )


def _folder(name: str, *, part: str = "target") -> Path | None:
    """A folder given as such, or a part of a pair of the registry that is already here."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from macspec_models.errors import ModelError

    try:
        return local_folder(name, part=part)
    except ModelError:
        return None


def read_config(folder: Path) -> tuple[dict[str, Any], str]:
    """``config.json`` of a model folder, or why it cannot be read."""
    path = folder / "config.json"
    values, error = _json(path)
    if error:
        return {}, error
    return (values, "") if isinstance(values, dict) else ({}, f"{path} is not an object")


def read_profiles(folder: Path, now: float) -> list[ProfileFacts]:
    """Every stored cost ladder."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        if path.name in ("kernels.json", ROW_NOISE_FILE) or path.name.endswith(".survival.json"):
            continue
        values, error = _json(path)
        if error or not isinstance(values, dict):
            found.append(ProfileFacts(str(path), error=error or f"{path} is not an object"))
            continue
        own = values.get("identity")
        identity: dict[str, Any] = own if isinstance(own, dict) else {}
        measured = values.get("measured_at")
        try:
            ladder = Ladder.from_json(values.get("ladder"), name="measured")
            error = ""
        except LadderError as problem:
            ladder, error = None, problem.message
        found.append(
            ProfileFacts(
                path=str(path),
                target=str(identity.get("target", "")),
                drafter=str(identity.get("drafter", "")),
                age_s=now - measured if isinstance(measured, (int, float)) and measured > 0 else None,
                doubtful=bool(values.get("doubtful")),
                ladder=ladder,
                error=error,
                dtype=str(identity.get("dtype", "")),
            )
        )
    return found


def _kernels(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    values, error = _json(path)
    verdicts = values.get("verdicts") if isinstance(values, dict) else None
    if error or not isinstance(verdicts, dict) or not all(isinstance(v, dict) for v in verdicts.values()):
        return {"kernels_error": error or f"{path} is not a verdict file"}
    return {"kernels": verdicts}


def _row_noise(path: Path) -> tuple[dict[str, Any], ...]:
    """Usable entries; others are measured again when they are needed."""
    values, _ = _json(path)
    measured = values.get("measured") if isinstance(values, dict) else None
    entries = list(measured.values()) if isinstance(measured, dict) else []
    return tuple(
        entry
        for entry in entries
        if isinstance(entry, dict) and all(isinstance(entry.get(name), (int, float)) for name in ("largest", "rate"))
    )


def _json(path: Path) -> tuple[Any, str]:
    try:
        if path.stat().st_size > MAX_SMALL_FILE:
            return None, f"{path} is far too large"
        return json.loads(path.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return None, f"{path} is missing"
    except OSError as error:
        return None, f"{path} cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        return None, f"{path} is not JSON"


def size_of(folder: Path) -> int:
    """Bytes in a folder, links not followed and not counted twice."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(base, name))
            except OSError:
                continue
            total += status.st_size
    return total


def _writable(folder: Path) -> bool:
    return os.access(existing(folder), os.W_OK | os.X_OK)


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _wheel_tag() -> str | None:
    try:
        text = importlib.metadata.distribution("mlx-metal").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return None
    tags = [line.split("-")[-1].strip() for line in text.splitlines() if line.startswith("Tag:")]
    return tags[0] if tags else None
