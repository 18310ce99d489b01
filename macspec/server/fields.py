"""Values inside a body whose form only their converter knows."""

from __future__ import annotations

from typing import Any

from macspec.errors import RequestError


def as_object(value: Any, where: str) -> dict[str, Any]:
    """A JSON object without its nulls. Raises `RequestError` that names the place."""
    if not isinstance(value, dict):
        raise RequestError(f"{where} should be an object.", param=where)
    return {key: item for key, item in value.items() if item is not None}


def as_text(value: Any, where: str) -> str:
    """A text. Raises `RequestError` that names the place."""
    if not isinstance(value, str):
        raise RequestError(f"{where} should be a text.", param=where)
    return value
