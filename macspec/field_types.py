"""Whether the fields of a request are of the types it declares; numbers are looked at in `macspec.limits`."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from macspec.errors import RequestError

#: Characters of a refused value that are repeated to the caller.
_SHOWN = 60


def check_types(record: Any, hints: Mapping[str, Any]) -> None:
    """Refuse a field of ``record`` that is not what ``hints`` says; raises `RequestError` with the field's name."""
    for name, hint in hints.items():
        value = getattr(record, name)
        if not _fits(value, hint):
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
            raise RequestError(f"{name} is {shown}; use {_words(hint)}.", param=name)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, kind) for kind in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict)
    if hint in (int, float, Any):
        return True
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(kind) for kind in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        return f"a list of {_noun(arguments[0])}s"
    if hint is bool:
        return "True or False"
    return "None" if hint is type(None) else f"a {_noun(hint)}"


def _noun(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    return {str: "text", int: "whole number"}.get(kind) or str(kind.__name__)
