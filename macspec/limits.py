"""The ranges sampling parameters must lie in, whatever the model. No MLX here."""

from __future__ import annotations

import math

from macspec.errors import RequestError
from macspec.request import SamplingParams

MAX_TOP_LOGPROBS = 20
MAX_ANSWERS = 64
MAX_BIAS = 100.0
#: Below this, logits divided by the temperature lose their order to rounding.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0


def check_numbers(params: SamplingParams) -> None:
    """Refuse a value out of range; raises `RequestError` with the field's name."""
    temperature = _number("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    if 0.0 < temperature < MIN_TEMPERATURE:
        raise refusal("temperature", temperature, f"use 0 for the best token, or at least {MIN_TEMPERATURE}")
    if _number("top_p", params.top_p, 0.0, 1.0) == 0.0:
        raise refusal("top_p", 0.0, "use a number above 0 and up to 1; for the best token set temperature to 0")
    _number("min_p", params.min_p, 0.0, 1.0)
    _whole("top_k", params.top_k, 0)
    if _number("repetition_penalty", params.repetition_penalty, 0.0, 10.0) == 0.0:
        raise refusal("repetition_penalty", 0.0, "use a number above 0 and up to 10; 1 is off")
    _number("presence_penalty", params.presence_penalty, -10.0, 10.0)
    _number("frequency_penalty", params.frequency_penalty, -10.0, 10.0)
    _whole("penalty_window", params.penalty_window, 0)
    if params.seed is not None:
        _whole("seed", params.seed, -(2**63), 2**64 - 1)
    for token, bias in params.logit_bias.items():
        _number("logit_bias", bias, -MAX_BIAS, MAX_BIAS, label=f"logit_bias of token {token}")
    _whole("min_tokens", params.min_tokens, 0)
    if params.max_tokens is not None:
        _whole("max_tokens", params.max_tokens, 1)
        if params.min_tokens > params.max_tokens:
            raise refusal("min_tokens", params.min_tokens, f"max_tokens is only {params.max_tokens}")
    if isinstance(params.stop, str) or not all(isinstance(text, str) for text in params.stop):
        raise RequestError("stop is a list of texts; give each stop string as an entry of its own.", param="stop")
    if "" in params.stop:
        raise RequestError("stop has an empty text, which would end every answer at once; leave it out.", param="stop")
    if params.logprobs is not None:
        _whole("logprobs", params.logprobs, 0, MAX_TOP_LOGPROBS)
    _whole("n", params.n, 1, MAX_ANSWERS)


def _number(name: str, value: object, low: float, high: float, *, label: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise refusal(name, value, f"use a number from {low:g} to {high:g}", label)
    if not low <= value <= high:
        raise refusal(name, value, f"use a number from {low:g} to {high:g}", label)
    return float(value)


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    span = f"from {low} up" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise refusal(name, value, f"use a whole number {span}")


def refusal(name: str, value: object, rule: str, label: str = "") -> RequestError:
    """The sentence for a value that breaks a rule."""
    return RequestError(f"{label or name} is {value!r}; {rule}.", param=name)
