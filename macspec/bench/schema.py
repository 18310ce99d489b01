"""The JSON schema of a result, made from the very types that are written."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

from macspec.bench.document import FORMAT, Report
from macspec.request import Wire

#: The published copy; a test keeps it equal to `schema`.
FILE = Path(__file__).with_name("schema.json")

_PLAIN: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    Any: {},
}


def schema() -> dict[str, Any]:
    """JSON schema (2020-12) of `Report`."""
    definitions: dict[str, Any] = {}
    _object(Report, definitions)
    definitions["Report"]["properties"]["format"] = {"const": FORMAT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Result of macspec bench",
        "$ref": "#/$defs/Report",
        "$defs": definitions,
    }


def _object(kind: type[Wire], definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}
        hints = typing.get_type_hints(kind)
        names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]  # every Wire is a dataclass
        definitions[kind.__name__] = {
            "type": "object",
            "properties": {name: _value(hints[name], definitions) for name in names},
            "required": names,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _value(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in arguments if a is not type(None))
        return {"anyOf": [_value(inner, definitions), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _value(arguments[1], definitions)}
    if isinstance(hint, type) and issubclass(hint, Wire):
        return _object(hint, definitions)
    return dict(_PLAIN[hint])
