"""Forty JSON schemas: nested, enumerated, bounded, recursive, with keys in several scripts."""

from __future__ import annotations

from typing import Any


def closed(**properties: Any) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def listed(items: Any, low: int = 0, high: int = 4) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


WORD = {"type": "string", "maxLength": 12}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
FLAG = {"type": "boolean"}

SCHEMAS: list[dict[str, Any]] = [
    {"type": "null"},
    FLAG,
    DIGIT,
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"type": "number", "minimum": 0, "maximum": 1},
    WORD,
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "one", None, True]},
    {"enum": ["é", "你好", "😀", 'quote"d', "back\\slash", "line\nbreak"]},
    {"const": {"fixed": [1, 2, {"deep": "value"}]}},
    {"type": ["integer", "null"], "maximum": 99, "minimum": 0},
    {"anyOf": [DIGIT, {"type": "string", "maxLength": 4}]},
    {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    listed(DIGIT),
    listed(DIGIT, 2, 2),
    listed(WORD, 1, 3),
    listed(listed(FLAG, 1, 2), 1, 3),
    {"type": "array", "prefixItems": [DIGIT, WORD, FLAG], "items": False, "minItems": 3},
    closed(),
    closed(name=WORD),
    closed(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 150}),
    closed(point=closed(x=DIGIT, y=DIGIT), label=WORD),
    closed(a=closed(b=closed(c=closed(d=closed(e=FLAG))))),
    closed(tags=listed({"enum": ["new", "old", "odd"]}, 1, 3), size={"enum": ["S", "M", "L"]}),
    closed(**{"名前": WORD, "возраст": DIGIT, "clé": FLAG, "😀": {"type": "null"}}),
    closed(**{"with space": DIGIT, 'with "quotes"': DIGIT, "tab\t": DIGIT}),
    {"type": "object", "properties": {"a": DIGIT, "b": FLAG}, "required": ["b"], "additionalProperties": False},
    {"type": "object", "properties": {"a": DIGIT, "b": FLAG}, "additionalProperties": False},
    closed(rows=listed(closed(id=DIGIT, ok=FLAG), 1, 3)),
    closed(value={"anyOf": [closed(kind={"const": "n"}, n=DIGIT), closed(kind={"const": "s"}, s=WORD)]}),
    {"$ref": "#/$defs/pair", "$defs": {"pair": closed(left=DIGIT, right=DIGIT)}},
    {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": closed(v=DIGIT, kids=listed({"$ref": "#/$defs/tree"}, 0, 2))},
    },
    {
        "$ref": "#/$defs/list",
        "$defs": {"list": closed(head=DIGIT, tail={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]})},
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    closed(
        config=closed(mode={"enum": ["fast", "exact"]}, limits=listed({"type": "number"}, 2, 2)), notes=listed(WORD)
    ),
    closed(first={"type": "string", "pattern": "^[A-Z][a-z]{1,5}$"}, code={"type": "string", "pattern": "^[0-9]{4}$"}),
]
