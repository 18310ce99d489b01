"""Refuses sampling parameters that this model cannot honour, before any work is done. No MLX here."""

from __future__ import annotations

from collections.abc import Iterable

from macspec.errors import RequestError
from macspec.limits import check_numbers, refusal
from macspec.request import SamplingParams


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
