"""Refuses what this model cannot honour, before any work is done. No MLX here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from macspec.engine.thinking import Markers
from macspec.errors import RequestError, UnsupportedError
from macspec.limits import check_numbers, refusal
from macspec.request import GenerationRequest, SamplingParams


def check_abilities(request: GenerationRequest, tokenizer: Any) -> None:
    """Refuse thinking and tools where the model has neither. To turn thinking off is always possible.

    Args:
        tokenizer: mlx-lm's wrapper, which knows what the model was trained to write.

    Raises:
        UnsupportedError: ``param`` is the field's name.
        RequestError: the thinking budget is no number of tokens.
    """
    budget = request.thinking_budget
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 0):
        raise refusal("thinking_budget", budget, "use a whole number from 0 up")
    if Markers.of(tokenizer) is None:
        if request.thinking:
            raise UnsupportedError(
                "This model has no thinking sections, so thinking cannot be turned on; leave thinking out.",
                param="thinking",
            )
        if budget is not None:
            raise UnsupportedError(
                "This model has no thinking sections, so it cannot keep a thinking budget; leave thinking_budget out.",
                param="thinking_budget",
            )
    if request.tools and not getattr(tokenizer, "has_tool_calling", False):
        raise UnsupportedError(
            "This model was not trained to call tools and its chat template does not show them; leave tools out.",
            param="tools",
        )


def check_sampling(params: SamplingParams, vocab: int, max_context: int) -> None:
    """Refuse a value out of range, with a sentence that names the field and what it may be.

    Args:
        vocab: number of token ids the target has.
        max_context: tokens the context holds, prompt included.

    Raises:
        RequestError: ``param`` is the field's name.
    """
    check_numbers(params)
    for name in ("max_tokens", "min_tokens"):
        value = getattr(params, name)
        if value is not None and value > max_context:
            raise refusal(name, value, f"the context holds {max_context} tokens")
    for name in ("banned_tokens", "allowed_tokens", "stop_token_ids", "logit_bias"):
        _check_tokens(name, getattr(params, name) or (), vocab)
    allowed = params.allowed_tokens
    if allowed is not None and not set(allowed) - set(params.banned_tokens):
        raise RequestError(
            "allowed_tokens leaves nothing to choose once banned_tokens are taken out; allow at least one token.",
            param="allowed_tokens",
        )
    if allowed is None and len(set(params.banned_tokens)) >= vocab:
        raise RequestError("banned_tokens bans every token of the model; leave at least one.", param="banned_tokens")


def check_depth(depth: int, drafter_depth: int) -> None:
    """Refuse a fixed depth that the drafter's block does not reach; ``drafter_depth`` is the most it drafts."""
    if depth > drafter_depth:
        raise RequestError(
            f"depth is {depth}, but this drafter drafts {drafter_depth} tokens at most; use a number up to "
            f"{drafter_depth}, full or auto.",
            param="depth",
        )


def _check_tokens(name: str, tokens: Iterable[object], vocab: int) -> None:
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise RequestError(
                f"{name} names token {token!r}, but this model's ids run from 0 to {vocab - 1}.", param=name
            )
