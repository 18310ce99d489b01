"""What one timed answer consists of: the value types every part of the benchmark shares. No MLX here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from macspec.request import Wire

#: Decoded tokens after the first round below which an answer is too short to time.
MIN_TIMED_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Prompt(Wire):
    """One prompt of a suite. ``id`` is unique within a run."""

    id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Settings(Wire):
    """What every arm of a run is asked for alike."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    thinking: bool | None = None


@dataclass(frozen=True, slots=True)
class RoundSample(Wire):
    """One round: draft tokens made, checked and accepted, tokens committed, and where the milliseconds went."""

    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    committed: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    other_ms: float = 0.0
    #: Exact mode: near-ties decided again, and the milliseconds that took.
    redecided: int = 0
    redecide_ms: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sample(Wire):
    """One answer of one arm. Times are seconds since the request was made."""

    arm: str
    prompt: str
    category: str
    repeat: int = 0
    #: Place in the run, counted over all arms.
    order: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    #: Tokens that came with the first round; they say nothing about the decode rate.
    first_round_tokens: int = 1
    first_commit_s: float = 0.0
    end_s: float = 0.0
    #: Token ids; empty where the arm shows only text.
    tokens: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str = "stop"
    rounds: tuple[RoundSample, ...] = field(default_factory=tuple)
    peak_memory: int = 0
    thermal_level: int | None = None
    #: Energy of the whole answer, prompt included; None where nobody measured it.
    joules: float | None = None
    #: A sentence when there was no answer; such a sample carries no figures.
    error: str | None = None

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first round, ``(N - n_first) / (t_end - t_first)``; None when too short.

        A speculative first round emits several tokens at once, so ``N - 1`` would count tokens whose time is not in
        the denominator.
        """
        timed = self.generation_tokens - self.first_round_tokens
        seconds = self.end_s - self.first_commit_s
        if self.error is not None or timed < MIN_TIMED_TOKENS or seconds <= 0:
            return None
        return timed / seconds


class Arm(Protocol):
    """One thing that is compared: an engine with fixed settings that answers prompts."""

    @property
    def name(self) -> str:
        """Short name shown in tables: ``plain``, ``depth 4``, ``auto``, ``mlx_lm``."""
        ...

    def run(self, prompt: Prompt, settings: Settings) -> Sample:
        """Answer one prompt; raises `MacspecError` when it cannot."""
        ...

    def gap(self, prompt: Prompt, prefix: tuple[int, ...], first: int, second: int) -> float | None:
        """The target's logit gap between two candidate tokens after ``prefix``; None when the arm cannot say."""
        ...
