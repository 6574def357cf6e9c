"""The schemas that manifests carry, in one form: JSON Schema.

Authors write either a JSON Schema or the compact form, `field: type` for each field. Both come out as
JSON Schema here, so that nothing behind a manifest has to know that there are two. Schemas describe, they do
not reject: where the author's meaning is unclear the result allows more, never less.
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
#: Words that the keyword's own meaning asks to be a map, a list or a boolean: no field type looks like that.
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
    """The schema as JSON Schema; one that is written as JSON Schema is returned as it is."""
    if isinstance(written, bool) or not written or _is_json_schema(written):
        return written
    return {"type": "object", "properties": {name: _field(value) for name, value in written.items()}}


def _is_json_schema(written: dict[str, JsonValue]) -> bool:
    if any(isinstance(written.get(word), shape) for word, shape in _STRUCTURAL.items()):
        return True
    if "$schema" in written or "$ref" in written:
        return True
    # `type` alone could also be a field of that name; but then a payload field named `type` and nothing
    # else would be all there is, and `type: object` beside field types is said by no one.
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
