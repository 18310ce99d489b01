"""Random requests with a seed, as a body for the API and as words for ``macspec generate``."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SeededRequest:
    """One request in both forms."""

    path: str
    body: dict[str, Any]
    words: list[str]


def seeded_request(seed: int, prompt: str, vocab: int, most: int) -> SeededRequest:
    """A request with random parameters and at most ``most`` tokens, over a vocabulary of ``vocab``."""
    chance = random.Random(seed)
    limit = chance.randrange(1, most + 1)
    parameters: dict[str, Any] = {
        "temperature": chance.choice([0.0, 0.7, 1.3]),
        "top_p": chance.choice([1.0, 0.9]),
        "top_k": chance.choice([0, 40]),
        "min_p": chance.choice([0.0, 0.02]),
        "seed": seed,
        "max_tokens": limit,
        "min_tokens": chance.choice([0, limit // 2]),
        "presence_penalty": chance.choice([0.0, 0.5]),
        "frequency_penalty": chance.choice([0.0, -0.3]),
        "repetition_penalty": chance.choice([1.0, 1.2]),
        "penalty_window": chance.choice([0, 8]),
        "n": chance.choice([1, 1, 1, 2]),
    }
    bias = {str(chance.randrange(vocab)): chance.choice([-100, 2, 5]) for _ in range(chance.randrange(3))}
    stops = chance.sample([".", " a", "e", "1", "\n"], chance.choice([0, 0, 1, 2]))
    words = [word for name, value in parameters.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [word for token, value in bias.items() for word in ("--logit-bias", f"{token}={value}")]
    words += [word for stop in stops for word in ("--stop", json.dumps(stop))]
    depth = chance.choice([None, 0, 1, 3, "full"])
    body = {**parameters, "logit_bias": bias or None, "stop": stops or None, "depth": depth}
    if chance.random() < 0.15:
        body["response_format"] = {"type": "json_object"}
        words.append("--json-object")
    if chance.random() < 0.5:
        return SeededRequest("/v1/completions", {**body, "prompt": prompt}, [prompt, "--raw", *words])
    messages = [{"role": "user", "content": prompt}]
    if chance.random() < 0.5:
        messages.insert(0, {"role": "system", "content": "Be brief."})
        words += ["--system", "Be brief."]
    return SeededRequest("/v1/chat/completions", {**body, "messages": messages}, [prompt, *words])
