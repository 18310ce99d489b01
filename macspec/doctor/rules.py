"""What the facts mean: one function per area, each giving findings with a cause and a remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from macspec.doctor.facts import Facts, PairFacts, ProfileFacts
from macspec.machine import THERMAL_NAMES
from macspec.request import Wire

Level = Literal["ok", "note", "problem", "broken"]

OLDEST_MLX = (0, 32, 3)
OLDEST_MACOS = (14,)
#: First system that runs the M5's matrix units, and the wheel built for them.
NAX_MACOS, NAX_WHEEL, NAX_GENERATION = (26, 2), "macosx_26", 17
#: Below this a float32 product runs on the reference BLAS; OpenBLAS gives 20 and more per core even when shared.
SLOW_GFLOPS = 8.0
LOW_DISK, VERY_LOW_DISK = 10 << 30, 1 << 30
SMALL_MEMORY = 8 << 30
OLD_LADDER_S = 180 * 86400
#: A drafter that must be right this often per token will hardly be.
HARD_SURVIVAL = 0.85
#: Tokens of an answer that near-ties are expected in, to call exact mode cheap.
TYPICAL_ANSWER = 256


@dataclass(frozen=True, slots=True)
class Finding(Wire):
    """One thing doctor has to say. ``broken`` means macspec cannot work until it is mended."""

    area: str
    level: str
    message: str
    remedy: str = ""


Rule = Callable[[Facts], Iterator[Finding]]


def examine(facts: Facts) -> list[Finding]:
    """All findings, area by area."""
    return [finding for rule in RULES for finding in rule(facts)]


def version(text: str | None) -> tuple[int, ...]:
    """``26.4.1`` as numbers; empty when unknown."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _machine(facts: Facts) -> Iterator[Finding]:
    yield Finding("machine", "ok", f"{facts.machine.title}.")
    host = facts.machine
    if host.system == "Darwin" and host.rosetta:
        yield Finding(
            "machine",
            "broken",
            "This Python is built for Intel and runs translated by Rosetta; MLX exists only for arm64.",
            "Install an arm64 Python, for example with: arch -arm64 uv python install 3.12",
        )
    elif host.system == "Darwin" and host.architecture not in ("arm64", ""):
        yield Finding("machine", "broken", "This Mac has an Intel processor; MLX needs Apple Silicon.", "")
    if host.system == "Darwin" and version(host.os_version) and version(host.os_version) < OLDEST_MACOS:
        yield Finding(
            "machine",
            "broken",
            f"macOS {host.os_version} is too old; MLX needs macOS {OLDEST_MACOS[0]} or later.",
            "Update in System Settings > General > Software Update.",
        )
    if host.memory_bytes is not None and host.memory_bytes < SMALL_MEMORY:
        yield Finding(
            "machine",
            "problem",
            f"The machine has {_gb(host.memory_bytes)} of memory; only small models fit.",
            "Choose a model of 1.5 B parameters or fewer in 4 bits.",
        )
    if host.virtual and host.system == "Darwin":
        yield Finding(
            "machine", "problem", "This is a virtual Mac; its GPU is slow or missing.", "Use the Mac itself to measure."
        )


def _python(facts: Facts) -> Iterator[Finding]:
    shown = ".".join(str(part) for part in facts.python)
    if facts.python < (3, 11):
        yield Finding("python", "broken", f"Python {shown} is too old.", "Install Python 3.11 or later.")
    names = ("macspec", "mlx", "mlx-lm")
    told = ", ".join(f"{name} {facts.packages[name]}" for name in names if name in facts.packages)
    yield Finding("python", "ok", f"Python {shown}, {told}." if told else f"Python {shown}.")
    for name in ("mlx", "mlx-lm"):
        if name not in facts.packages:
            yield Finding("python", "broken", f"{name} is not installed.", f"Install it with: pip install {name}")


def _mlx(facts: Facts) -> Iterator[Finding]:
    installed = version(facts.packages.get("mlx"))
    if installed and installed < OLDEST_MLX:
        yield Finding(
            "mlx",
            "broken",
            f"MLX {facts.packages['mlx']} aborts on some cache operations and mixes streams between threads.",
            f"Update it with: pip install -U 'mlx>={'.'.join(map(str, OLDEST_MLX))}'",
        )
    if facts.mlx is None:
        if "mlx" in facts.packages:
            yield Finding(
                "mlx",
                "broken",
                f"MLX cannot be imported: {facts.mlx_error or 'no reason given'}.",
                "Reinstall it with: pip install --force-reinstall mlx",
            )
        return
    if not facts.mlx.right:
        yield Finding(
            "mlx", "broken", "MLX computed a small product wrongly.", "Reinstall MLX; if it persists, report the chip."
        )
    yield from _metal(facts) if facts.machine.system == "Darwin" else _linux(facts)


def _metal(facts: Facts) -> Iterator[Finding]:
    assert facts.mlx is not None
    if not facts.mlx.metal:
        yield Finding(
            "mlx",
            "broken",
            "MLX finds no Metal GPU, so everything would run on the processor.",
            "Run it in a session of the logged-in user (not a container or a build daemon) on Apple Silicon.",
        )
        return
    memory = ""
    if facts.mlx.working_set:
        memory = f", {_gb(facts.mlx.working_set)} usable by the GPU"
    yield Finding("mlx", "ok", f"Metal GPU {facts.mlx.architecture}{memory}.")
    system = version(facts.machine.os_version)
    if gpu_generation(facts.mlx.architecture) >= NAX_GENERATION:
        if OLDEST_MACOS <= system < NAX_MACOS:
            yield Finding(
                "mlx",
                "problem",
                f"macOS {facts.machine.os_version} cannot use this GPU's matrix units; prompts take about three times "
                "as long, and some MLX builds fail to load their kernels.",
                "Update to macOS 26.2 or later.",
            )
        elif facts.wheel_tag is not None and NAX_WHEEL not in facts.wheel_tag:
            yield Finding(
                "mlx",
                "problem",
                f"The MLX build for {facts.wheel_tag} leaves this GPU's matrix units unused; prompts take about three "
                "times as long.",
                "Reinstall it with: SYSTEM_VERSION_COMPAT=0 pip install --force-reinstall --no-cache-dir mlx mlx-metal",
            )
    if facts.wired_limit_mb:
        yield Finding(
            "mlx",
            "note",
            f"iogpu.wired_limit_mb was set to {facts.wired_limit_mb} by hand.",
            "Undo it with: sudo sysctl iogpu.wired_limit_mb=0",
        )


def _linux(facts: Facts) -> Iterator[Finding]:
    assert facts.mlx is not None
    if facts.mlx.blas is None or facts.mlx.gflops < SLOW_GFLOPS:
        cause = "MLX runs on its reference BLAS" if facts.mlx.blas is None else "Matrix products are very slow here"
        yield Finding(
            "mlx",
            "problem",
            f"{cause} ({facts.mlx.gflops:.1f} GFLOP/s), where drafting can never pay.",
            "Install a fast BLAS with: pip install ngsolve-openblas (and unset MACSPEC_BLAS); close busy programs.",
        )
    else:
        library = facts.mlx.blas.rsplit("/", 1)[-1]
        yield Finding("mlx", "ok", f"MLX runs on the processor with {library}, {facts.mlx.gflops:.0f} GFLOP/s.")
    if not facts.compiler:
        yield Finding(
            "mlx",
            "problem",
            "There is no C++ compiler, so MLX runs fused operations one by one: slower, with the same results.",
            "Install one, for example with: apt install g++",
        )


def _state(facts: Facts) -> Iterator[Finding]:
    now = facts.state
    if now.low_power_mode:
        yield Finding(
            "state",
            "problem",
            "Low Power Mode is on and lowers the clocks.",
            "Turn it off in System Settings > Battery.",
        )
    if now.power == "battery":
        yield Finding("state", "note", "The machine runs on battery.", "Plug it in before measuring.")
    if now.thermal_level:
        name = THERMAL_NAMES.get(now.thermal_level, str(now.thermal_level))
        yield Finding("state", "problem", f"Thermal pressure is {name}.", "Let it cool, or raise the fan speed.")
    if now.memory_pressure is not None and now.memory_pressure > 1:
        yield Finding("state", "problem", "The system is short of memory.", "Close programs or take a smaller model.")
    if now.load is not None and now.load > 0.5 * facts.machine.usable_cores:
        message = (
            f"The load is {now.load:.1f} on {facts.machine.usable_cores} cores; speed suffers from other programs."
        )
        yield Finding("state", "note", message, "Close them before measuring.")


def _storage(facts: Facts) -> Iterator[Finding]:
    sizes = ", ".join(f"{name} {_gb(size)}" for name, size in facts.stored.items() if size)
    if not facts.cache_writable:
        yield Finding(
            "storage",
            "broken",
            f"{facts.cache_folder} cannot be written, so no model can be unpacked and no profile kept.",
            "Give yourself the right to write there, or set XDG_CACHE_HOME to another folder.",
        )
    if facts.free_bytes is not None:
        free = f"{_gb(facts.free_bytes)} free"
        if facts.free_bytes < VERY_LOW_DISK:
            yield Finding(
                "storage", "broken", f"The disk is nearly full: {free}.", "Free some space; see macspec models list."
            )
        elif facts.free_bytes < LOW_DISK:
            yield Finding(
                "storage", "problem", f"The disk is low: {free}.", "Remove models with: macspec models rm NAME"
            )
        else:
            yield Finding("storage", "ok", f"{free}{'; kept: ' + sizes if sizes else ''}.")


def _pair(facts: Facts) -> Iterator[Finding]:
    pair = facts.pair
    if pair is None:
        return
    if pair.target_path is None:
        level: Level = "broken" if pair.target_error and "unpacked again" not in pair.target_error else "note"
        message = (
            f"The model {pair.target} is not unpacked yet."
            if not pair.target_error
            else (f"The model {pair.target}: {pair.target_error.rstrip('.')}.")
        )
        yield Finding("model", level, message, _how_to_get(pair))
    elif pair.target_error:
        yield Finding("model", "broken", f"The model {pair.target}: {pair.target_error}.", "Fetch the model again.")
    else:
        yield Finding("model", "ok", f"{pair.target} is at {pair.target_path}.")
    if pair.drafter_error:
        yield Finding("drafter", "broken", f"The drafter: {pair.drafter_error}.", "Reinstall macspec or pull it again.")
    elif pair.lookup:
        yield Finding("drafter", "ok", "Drafts are looked up in the text so far; that needs no files.")
    elif pair.missing_drafter_of and pair.target_config:
        yield Finding(
            "drafter",
            "note",
            f"The drafter of {pair.missing_drafter_of} is not on this machine, so it runs at plain speed.",
            f"Fetch it with: macspec models pull {pair.missing_drafter_of}",
        )
    elif pair.drafter_path is None and pair.target_config:
        yield Finding(
            "drafter",
            "note",
            "There is no drafter for this model, so it runs at plain speed.",
            "See: macspec models list",
        )
    elif pair.drafter_path is not None:
        mismatch = drafter_mismatch(pair.target_config, pair.drafter_config) if pair.target_config else ""
        if mismatch:
            yield Finding(
                "drafter",
                "broken",
                f"The drafter at {pair.drafter_path} was made for another model: {mismatch}.",
                f"Use the drafter made for {pair.target}; macspec models list shows the pairs.",
            )
        else:
            block = pair.drafter_config.get("block_size", "?")
            yield Finding("drafter", "ok", f"A drafter with blocks of {block} is at {pair.drafter_path}.")


def _how_to_get(pair: PairFacts) -> str:
    """What to do about a target that is not here."""
    if "nstall it with" in pair.target_error:
        return ""
    if "not on this machine" not in pair.target_error:
        return "It happens at the first use."
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", pair.target, re.ASCII):
        return f"Fetch it with: macspec models pull {pair.target}"
    return "Check the path, or choose from: macspec models list"


def drafter_mismatch(target: dict[str, object], drafter: dict[str, object]) -> str:
    """How a drafter's config contradicts a target's, or ""."""
    inner = target.get("text_config")
    base = inner if isinstance(inner, dict) else target
    own = drafter.get("dflash_config")
    nested: dict[str, object] = own if isinstance(own, dict) else {}

    def number(values: dict[str, object], name: str) -> int | None:
        value = values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    layers = number(base, "num_hidden_layers")
    expected = number(nested, "num_target_layers") or number(drafter, "num_target_layers")
    if layers is not None and expected is not None and layers != expected:
        return f"it expects {expected} layers and this one has {layers}"
    taps = nested.get("target_layer_ids")
    if layers is not None and isinstance(taps, list) and any(isinstance(t, int) and t >= layers for t in taps):
        return f"it reads layer {max(taps)} and this one has {layers}"
    width = number(nested, "target_hidden_size") or number(drafter, "hidden_size")
    if (hidden := number(base, "hidden_size")) is not None and width is not None and width != hidden:
        return f"it expects a width of {width} and this one has {hidden}"
    vocab = number(drafter, "vocab_size")
    if (words := number(base, "vocab_size")) is not None and vocab is not None and vocab != words:
        return f"it expects {vocab} words and this one has {words}"
    return ""


def _profiles(facts: Facts) -> Iterator[Finding]:
    if not facts.profiles:
        yield Finding(
            "ladder",
            "note",
            "Verification was not measured on this machine yet.",
            "It happens at the first use, or: macspec profile",
        )
    for profile in facts.profiles:
        yield from _profile(profile)


def _profile(profile: ProfileFacts) -> Iterator[Finding]:
    again = "Measure it again with: macspec profile --reprofile, and --model, --drafter and --dtype as it was used."
    if profile.ladder is None:
        yield Finding("ladder", "problem", f"{profile.path} cannot be used: {profile.error.rstrip('.')}.", again)
        return
    ladder = profile.ladder
    name = f"{profile.target or '?'} with {profile.drafter or '?'}{', ' + profile.dtype if profile.dtype else ''}"
    age = "" if profile.age_s is None else f", measured {_age(profile.age_s)} ago"
    first = ladder.verify[0]
    shape = ", ".join(f"{rows}: {first[rows - 1] / first[0]:.2f}" for rows in (1, 2, 4, 8, 16) if rows <= len(first))
    yield Finding("ladder", "ok", f"{name}: {first[0]:.1f} ms a pass{age}; cost by rows {shape}.")
    if profile.doubtful:
        yield Finding("ladder", "note", f"The ladder of {name} was measured on a busy or hot machine.", again)
    if profile.age_s is not None and profile.age_s > OLD_LADDER_S:
        yield Finding("ladder", "note", f"The ladder of {name} is {_age(profile.age_s)} old.", again)
    needed = break_even(profile)
    if needed is None:
        yield Finding(
            "ladder",
            "problem",
            f"{name}: speculation would stay parked, because drafting and verifying cost more here than even a perfect "
            "drafter saves.",
            "Use a larger or less quantised target, or no drafter.",
        )
    elif needed > HARD_SURVIVAL:
        yield Finding(
            "ladder",
            "problem",
            f"{name}: speculation will be parked most of the time; a draft token must survive {100 * needed:.0f} % of "
            "the time before drafting pays.",
            "That suits copying and code; elsewhere plain decoding is the right speed here.",
        )
    else:
        yield Finding("ladder", "ok", f"{name}: drafting pays from {100 * needed:.0f} % survival per draft token on.")


def break_even(profile: ProfileFacts) -> float | None:
    """Smallest survival per token at which some depth beats plain decoding in an empty context; None: there is none."""
    ladder = profile.ladder
    assert ladder is not None
    plain = ladder.verify[0][0] + ladder.plain_overhead

    def pays(survival: float) -> bool:
        expected = reach = 1.0
        for depth in range(1, len(ladder.verify[0])):
            reach *= survival
            expected += reach
            cost = ladder.draft[0] + ladder.verify[0][depth] + ladder.overhead
            if expected * plain > cost:
                return True
        return False

    if not pays(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def _kernels(facts: Facts) -> Iterator[Finding]:
    if facts.kernels_error:
        yield Finding(
            "kernels",
            "problem",
            f"Kernel verdicts are lost: {facts.kernels_error}.",
            "They are found out again at the next start.",
        )
    if facts.kernels:
        outcomes = [str(row.get("outcome", "?")) for row in facts.kernels.values()]
        told = ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))
        yield Finding("kernels", "ok", f"{len(outcomes)} kernel cases were tried: {told}.", "")
        bad = [
            case
            for case, row in facts.kernels.items()
            if row.get("outcome") in ("wrong", "crashed", "failed at run time")
        ]
        if bad:
            message = f"{len(bad)} kernel cases are switched off because they failed here, first {bad[0]}."
            yield Finding("kernels", "note", message, "Stock kernels run instead; please report macspec doctor --json.")


def _exact(facts: Facts) -> Iterator[Finding]:
    for entry in facts.row_noise:
        name = f"{entry.get('target')} in {entry.get('dtype')}"
        if entry["largest"] == 0:
            yield Finding("exact", "ok", f"{name}: --exact is free, a row has the same bits in every pass.")
            continue
        told = f"a logit differs by up to {entry['largest']:.2g} with the number of rows"
        if entry["rate"] * TYPICAL_ANSWER < 0.5:
            often = (
                f"about one token in {_round(1 / entry['rate'])} is decided again" if entry["rate"] > 0 else "rarely"
            )
            yield Finding("exact", "ok", f"{name}: --exact is nearly free; {told}, {often}.")
        else:
            yield Finding(
                "exact",
                "note",
                f"{name}: --exact means nearly plain speed; {told}, so that one token in {_round(1 / entry['rate'])} "
                "would have to be decided again.",
                "Leave --exact out where near-ties may fall either way, or use float32 weights.",
            )


def gpu_generation(architecture: str) -> int:
    """``applegpu_g17s`` gives 17; phones (``p``) count one lower; 0 when unknown."""
    found = re.search(r"applegpu_g(\d+)([a-z])", architecture)
    if found is None:
        return 0
    return int(found.group(1)) - (1 if found.group(2) == "p" else 0)


def _round(number: float) -> str:
    """Two significant digits, thousands with commas."""
    return f"{int(float(f'{number:.2g}')):,}"


def _gb(size: int) -> str:
    return f"{size / 2**30:.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"


def _age(seconds: float) -> str:
    days = seconds / 86400
    if days >= 2:
        return f"{days:.0f} days"
    hours = seconds / 3600
    return f"{hours:.0f} hours" if hours >= 2 else f"{max(seconds, 0) / 60:.0f} minutes"


RULES: tuple[Rule, ...] = (_machine, _python, _mlx, _state, _storage, _pair, _profiles, _kernels, _exact)
