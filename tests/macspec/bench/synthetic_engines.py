"""Engines made of arithmetic: known speed, noise, drift, outliers and throttling on a clock that never waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from macspec.bench.samples import Prompt, RoundSample, Sample, Settings

CATEGORIES = ("chat", "code", "math", "summarise")


@dataclass
class World:
    """A clock shared by all arms and the machine's slowness at a time (1 = full speed)."""

    now: float = 0.0
    slowness: Callable[[float], float] = lambda at: 1.0

    def clock(self) -> float:
        return self.now


@dataclass
class SyntheticArm:
    """Answers at ``speed`` tokens per second, varied per prompt, per answer, and by the world."""

    name: str
    speed: float
    world: World
    rng: np.random.Generator
    noise: float = 0.0
    prompt_spread: float = 0.0
    outliers: float = 0.0
    depth: int = 0
    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: Rounds kept per answer; hundreds of runs need none.
    keep_rounds: int = 1000

    def __post_init__(self) -> None:
        self.factors: dict[str, float] = {}

    def run(self, prompt: Prompt, settings: Settings) -> Sample:
        factor = self.factors.setdefault(prompt.id, float(np.exp(self.prompt_spread * self.rng.standard_normal())))
        count = settings.max_tokens
        first = min(1 + self.depth, count)
        seconds = (count - first) / (self.speed * factor)
        seconds *= float(np.exp(self.noise * self.rng.standard_normal()))
        if self.rng.random() < self.outliers:
            seconds *= float(self.rng.uniform(1.5, 4.0))
        began = self.world.now
        prefill = 0.05 * self.world.slowness(began)
        seconds *= self.world.slowness(began + prefill + seconds / 2)
        self.world.now += prefill + seconds
        tokens = self.answers.get(prompt.id) or tuple(range(sum(prompt.id.encode()), sum(prompt.id.encode()) + count))
        rounds = tuple(
            RoundSample(self.depth, self.depth, self.depth, 1 + self.depth, 1.0, 5.0, 0.1)
            for _ in range(min(self.keep_rounds, max(1, count // (1 + self.depth))))
        )
        return Sample(
            arm=self.name,
            prompt=prompt.id,
            category=prompt.category,
            prompt_tokens=20,
            generation_tokens=count,
            first_round_tokens=first,
            first_commit_s=prefill,
            end_s=prefill + seconds,
            tokens=tokens[:count],
            text=" ".join(str(token) for token in tokens[:count]),
            rounds=rounds,
            peak_memory=1000,
        )

    def gap(self, prompt: Prompt, prefix: tuple[int, ...], first: int, second: int) -> float | None:
        return 0.03


def some_prompts(count: int) -> list[Prompt]:
    return [
        Prompt(id=f"{CATEGORIES[i % 4]}-{i // 4}", category=CATEGORIES[i % 4], text=f"prompt {i}") for i in range(count)
    ]
