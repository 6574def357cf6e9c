"""Turns the schemas of a manifest into JSON Schema.

Authors write either a JSON Schema or the compact form, `field: type` for each field. Where the meaning is
unclear, the result allows more, never less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ductile.core.json import JsonValue

JsonSchema: TypeAlias = "dict[str, JsonValue] | bool"

_TYPES = {
    "string": "string",
    "str": "string",
    "text": "string",
    "integer": "integer",
    "int": "integer",
    "number": "number",
    "float": "number",
    "boolean": "boolean",
    "bool": "boolean",
    "array": "array",
    "list": "array",
    "object": "object",
    "map": "object",
    "dict": "object",
    "null": "null",
}
#: Keywords of JSON Schema with the type of their value, which no field of the compact form has.
_STRUCTURAL = {
    "properties": dict,
    "patternProperties": dict,
    "$defs": dict,
    "required": list,
    "enum": list,
    "allOf": list,
    "anyOf": list,
    "oneOf": list,
    "additionalProperties": bool,
}


def to_json_schema(written: dict[str, JsonValue] | bool) -> JsonSchema:
    """Return the schema as JSON Schema; one that is JSON Schema already is returned unchanged."""
    if isinstance(written, bool) or not written or _is_json_schema(written):
        return written
    return {"type": "object", "properties": {name: _field(value) for name, value in written.items()}}


def _is_json_schema(written: dict[str, JsonValue]) -> bool:
    if any(isinstance(written.get(word), shape) for word, shape in _STRUCTURAL.items()):
        return True
    if "$schema" in written or "$ref" in written:
        return True
    # `type` could also be a field of the compact form. It is one only beside other fields, and never with the
    # value `object`.
    return (
        isinstance(written.get("type"), list) or written.get("type") == "object" or set(written) == {"type"}
    )


def _field(value: JsonValue) -> JsonValue:
    match value:
        case str() if value.strip().lower() in _TYPES:
            return {"type": _TYPES[value.strip().lower()]}
        case str() if value.strip().lower() != "any":
            return {"description": value}
        case dict() if not value or "type" in value or _is_json_schema(value):
            return value
        case dict():
            return to_json_schema(value)
        case _:
            return {}
