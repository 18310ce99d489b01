"""Every sampling parameter with a value that changes what is chosen, alone and in random combinations."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from macspec.request import Grammar


def alone(tokens: Sequence[int], end: int, vocab: int) -> dict[str, dict[str, Any]]:
    """Settings by name, one for each parameter.

    Args:
        tokens: ids that the model is likely to choose, 40 or more.
        end: the end-of-sequence id.
        vocab: number of ids.
    """
    return {
        "nothing": {},
        "temperature": {"temperature": 0.7},
        "top_p": {"temperature": 1.0, "top_p": 0.6},
        "top_k": {"temperature": 1.2, "top_k": 5},
        "min_p": {"temperature": 1.1, "min_p": 0.2},
        "repetition_penalty": {"repetition_penalty": 1.4},
        "presence_penalty": {"presence_penalty": 0.8},
        "frequency_penalty": {"frequency_penalty": 0.6},
        "negative penalties": {"presence_penalty": -0.5, "frequency_penalty": -0.3, "temperature": 1.0},
        "penalty_window": {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "penalty_window": 4},
        "logit_bias": {"logit_bias": {tokens[3]: 2.0, tokens[5]: -4.0, end: -3.0}, "temperature": 1.0},
        "banned_tokens": {"banned_tokens": tuple(range(0, vocab, 3))},
        "allowed_tokens": {"allowed_tokens": tuple(range(0, vocab, 5)), "temperature": 1.0},
        "min_tokens": {"logit_bias": {end: 6.0}, "min_tokens": 6},
        "stop_token_ids": {"stop_token_ids": tuple(tokens[:40]), "min_tokens": 3},
        "ignore_eos": {"logit_bias": {end: 4.0}, "ignore_eos": True},
        "stop": {"stop": ("a", "B", "9", "Zz")},
        "logprobs": {"logprobs": 3, "temperature": 1.0},
        "n": {"n": 3, "temperature": 1.0},
        "json_schema": {"grammar": Grammar("json_schema", '{"type": "array", "items": {"type": "boolean"}}')},
        "json_object": {"grammar": Grammar("json_object"), "temperature": 1.0},
        "regex": {"grammar": Grammar("regex", "(ab|[c-f]{2,9}){3,8}"), "temperature": 1.0},
        "choice": {"grammar": Grammar("choice", json.dumps(["yes", "yesterday", "no"])), "temperature": 1.0},
        "lark": {"grammar": Grammar("lark", 'start: "x" start "y" | "z" | "zz"'), "temperature": 1.0},
        "grammar and penalties": {
            "grammar": Grammar("regex", "[a-e]+\\.[a-e]+"),
            "frequency_penalty": 1.0,
            "min_tokens": 12,
            "logit_bias": {end: 2.0},
        },
    }


#: The grammars of `alone`.
GRAMMARS = tuple(setting["grammar"] for setting in alone(range(40), 0, 1).values() if "grammar" in setting)


def combination(seed: int, tokens: Sequence[int], end: int, allowed: Sequence[int], most: int = 24) -> dict[str, Any]:
    """A random combination in which every parameter takes part about half of the time.

    Args:
        tokens: ids that the model is likely to choose, 10 or more.
        allowed: what ``allowed_tokens`` is when it takes part.
        most: the largest ``max_tokens``.
    """
    draw = random.Random(seed)

    def maybe(**values: Any) -> dict[str, Any]:
        return values if draw.random() < 0.5 else {}

    sampling: dict[str, Any] = {"max_tokens": draw.randint(1, most), "seed": draw.getrandbits(64)}
    sampling |= maybe(temperature=draw.choice([0.3, 0.8, 1.0, 1.6]))
    sampling |= maybe(top_p=draw.uniform(0.05, 1.0))
    sampling |= maybe(top_k=draw.randint(1, 60))
    sampling |= maybe(min_p=draw.uniform(0.0, 0.5))
    sampling |= maybe(repetition_penalty=draw.uniform(0.7, 2.0))
    sampling |= maybe(presence_penalty=draw.uniform(-1.5, 2.0))
    sampling |= maybe(frequency_penalty=draw.uniform(-0.5, 2.0))
    sampling |= maybe(penalty_window=draw.randint(1, 12))
    sampling |= maybe(logit_bias={draw.choice(tokens): draw.uniform(-5, 5) for _ in range(6)} | {end: 1.5})
    sampling |= maybe(banned_tokens=tuple(draw.sample(tokens, 10)))
    sampling |= maybe(stop=tuple(draw.choice("abcdefgXYZ@#") for _ in range(2)))
    sampling |= maybe(stop_token_ids=tuple(draw.sample(tokens, 2)))
    sampling |= maybe(ignore_eos=True)
    sampling |= maybe(min_tokens=draw.randint(0, sampling["max_tokens"]))
    if draw.random() < 0.3:
        sampling["grammar"] = draw.choice(GRAMMARS)
        sampling.pop("banned_tokens", None)
    elif draw.random() < 0.2:
        sampling["allowed_tokens"] = tuple(allowed)
    sampling |= maybe(logprobs=draw.randint(0, 5))
    if draw.random() < 0.15:
        sampling["n"] = 2
    return sampling
