"""The payload schemas of a manifest: translation into JSON Schema, and validation with jsonschema-rs.

Authors write either a JSON Schema or the compact form, `field: type` for each field. Where the meaning is
unclear, the result allows more, never less.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ductile.core.json import JsonValue
from ductile.struct import Value

if TYPE_CHECKING:
    import jsonschema_rs

JsonSchema: TypeAlias = "dict[str, JsonValue] | bool"

_TYPES = {
    **dict.fromkeys(("string", "str", "text"), "string"),
    **dict.fromkeys(("integer", "int"), "integer"),
    **dict.fromkeys(("number", "float"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list"), "array"),
    **dict.fromkeys(("object", "map", "dict"), "object"),
    "null": "null",
}
#: Keywords of JSON Schema with the type of their value, which no field of the compact form has.
_STRUCTURAL_KEYWORDS: dict[str, type] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs"), dict),
    **dict.fromkeys(("required", "enum", "allOf", "anyOf", "oneOf"), list),
    "additionalProperties": bool,
}
#: A pattern that needs more steps fails the field instead of blocking the daemon.
_MAX_BACKTRACKS = 100_000
_CACHED_SCHEMAS = 256
_MAX_VIOLATIONS = 20


def to_json_schema(written: dict[str, JsonValue] | bool) -> JsonSchema:
    """Return the schema as JSON Schema; one that is JSON Schema already is returned unchanged."""
    if isinstance(written, bool) or not written or _is_json_schema(written):
        return written
    return {"type": "object", "properties": {name: _field(value) for name, value in written.items()}}


def _is_json_schema(written: dict[str, JsonValue]) -> bool:
    """Return whether the mapping is JSON Schema, not the compact form."""
    if any(isinstance(written.get(keyword), expected) for keyword, expected in _STRUCTURAL_KEYWORDS.items()):
        return True
    if "$schema" in written or "$ref" in written:
        return True
    # `type` could also be a field of the compact form. It is one only beside other fields, and never with the
    # value `object`.
    return (
        isinstance(written.get("type"), list) or written.get("type") == "object" or set(written) == {"type"}
    )


def _field(value: JsonValue) -> JsonValue:
    """Return the JSON Schema of one field of the compact form."""
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


class UnusableSchemaError(ValueError):
    """The schema itself is invalid, or has an external reference."""


class SchemaViolation(Value):
    """A fault in one field. The value is omitted, because it may be a secret."""

    field: str
    message: str


def find_schema_violations(payload: JsonValue, schema: JsonSchema) -> tuple[SchemaViolation, ...]:
    """Return the violations, up to a limit; empty if the payload is valid. Raises UnusableSchemaError."""
    validator = _compile_schema(msgspec.json.encode(schema))
    violations = []
    for error in validator.iter_errors(payload):
        # `payload.items[2].url`
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        violations.append(SchemaViolation(field="".join(("payload", *parts)), message=error.message))
        if len(violations) == _MAX_VIOLATIONS:
            break
    return tuple(violations)


@lru_cache(maxsize=_CACHED_SCHEMAS)
def _compile_schema(schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs  # noqa: PLC0415 - 33 ms that only `validate_input` costs

    try:
        return jsonschema_rs.validator_for(
            msgspec.json.decode(schema),
            offline=True,
            mask="this value",
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise UnusableSchemaError(str(error).partition("\n")[0]) from None
