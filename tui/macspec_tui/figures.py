"""Numbers and reasons in words, the same everywhere they are shown."""

from __future__ import annotations

from macspec.request import GenerationStats
from macspec.worker.protocol import EngineInfo, EngineStats, LoadProgress


def tokens(count: int) -> str:
    """A token count in at most five characters: ``950``, ``3.1k``, ``128k``."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 99_950 else f"{count / 1000:.0f}k"


def size(count: int) -> str:
    """Bytes in decimal units, as macOS shows them."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def seconds(value: float) -> str:
    """A duration: ``0.8 s``, ``12 s``, ``2 min 5 s``."""
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def summary(stats: GenerationStats) -> str:
    """One line about a finished answer, without control characters or colour."""
    parts = [f"{stats.generation_tokens} tokens at {stats.generation_tps:.1f} tok/s"]
    if stats.rounds and stats.parked_rounds == stats.rounds:
        parts.append("plain decoding")
    elif stats.drafted:
        parts.append(f"{stats.acceptance_length:.2f} per round")
    if stats.prompt_tokens:
        cached = f" ({tokens(stats.cached_tokens)} cached)" if stats.cached_tokens else ""
        parts.append(f"prompt {tokens(stats.prompt_tokens)}{cached}")
    return " · ".join(parts)


def ending(reason: str) -> str:
    """Why an answer is shorter than it might be; empty for one that ended by itself."""
    return {
        "length": "cut off: the answer reached its token limit or the end of the context",
        "cancelled": "stopped",
        "failed": "broken off by an error",
    }.get(reason, "")


def without_drafter(info: EngineInfo) -> str:
    """Why this model runs without a drafter, as a sentence; empty when it has one."""
    if info.drafter is not None:
        return ""
    reason = info.drafter_reason.rstrip(".") or f"{info.model} has no known drafter"
    return f"No drafter: {reason}. Answers are the same, at plain speed."


def progress(step: LoadProgress) -> str:
    """One step of loading in words."""
    detail = f" {step.detail}" if step.detail else ""
    if not step.total:
        return f"{step.stage}{detail}"
    share = 100 * min(step.done, step.total) // step.total
    if step.total >= 100_000:
        return f"{step.stage}{detail}: {size(step.done)} of {size(step.total)} ({share} %)"
    return f"{step.stage}{detail}: {share} %"


def counted(number: int, word: str) -> str:
    """A number with its word in the singular or plural."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def spent(stats: GenerationStats) -> list[str]:
    """Where the time of an answer went, in short lines."""
    lines = [
        f"  drafting {stats.draft_ms / 1000:.2f} s, verifying {stats.verify_ms / 1000:.2f} s",
        f"  other {stats.other_ms / 1000:.2f} s, prompt at {stats.prompt_tps:.0f} tok/s",
    ]
    if stats.rounds:
        lines.append(f"  {stats.parked_rounds} of {stats.rounds} rounds plain")
    if stats.redecided:
        lines.append(f"  {stats.redecided} near-ties decided again, {stats.redecide_ms / 1000:.2f} s")
    return lines


def engine_lines(stats: EngineStats) -> list[str]:
    """The engine process in short lines: what it did since it started and what it holds."""
    share = 100 * stats.accepted / stats.verified if stats.verified else 0
    lines = [
        f"Engine: up {seconds(stats.uptime)}, {counted(stats.completed, 'answer')}",
        f"  {stats.generation_tokens:,} tokens generated",
        f"  {stats.accepted:,} of {stats.verified:,} drafts accepted ({share:.0f} %)",
    ]
    if stats.memory_peak:
        lines.append(f"  memory {size(stats.memory_active)}, peak {size(stats.memory_peak)}")
    if stats.memory_footprint:
        lines.append(f"  freed and kept {size(stats.memory_cache)}, process {size(stats.memory_footprint)}")
    if stats.restarts:
        lines.append(f"  started again {counted(stats.restarts, 'time')}")
    return lines
