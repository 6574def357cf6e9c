"""Makes a sample payload from a JSON Schema, for commands without an example. Pure.

Covers the keywords that manifests use: types, properties, required, enum, examples, bounds, combinations and
references. A `pattern` is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ductile.core.json import JsonObject, JsonValue
    from ductile.protocol.manifest.schema import JsonSchema

#: Nesting of the sample: a schema may refer to itself.
_MAX_DEPTH = 6
_TEXTS = {
    "uri": "http://localhost/",
    "url": "http://localhost/",
    "email": "someone@example.org",
    "date": "2026-01-02",
    "time": "03:04:05Z",
    "date-time": "2026-01-02T03:04:05Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def sample_payload(schema: JsonSchema | None) -> JsonObject:
    """Return an object that fits the schema of a command; empty without a schema for one."""
    if not isinstance(schema, dict):
        return {}
    sample = _value(schema, schema, 0)
    return sample if isinstance(sample, dict) else {}


def _value(schema: JsonValue, root: JsonObject, depth: int) -> JsonValue:
    """Return a value that fits a schema; `root` is the document that its references point into."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if (declared := _declared_value(schema)) is not None:
        return declared
    for keyword in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(keyword), list) and choices:
            return _value({**_without_key(schema, keyword), **_object(choices[0])}, root, depth + 1)
    if isinstance(parts := schema.get("allOf"), list):
        return _value(_merge_all([_without_key(schema, "allOf"), *map(_object, parts)]), root, depth + 1)
    if isinstance(reference := schema.get("$ref"), str):
        target: JsonValue = root
        for name in reference.removeprefix("#").strip("/").split("/"):
            target = _object(target).get(name) if name else target
        return _value(target, root, depth + 1)
    return _value_of_type(schema, root, depth)


def _declared_value(schema: JsonObject) -> JsonValue:
    """Return a value that the schema itself gives, None if it gives none."""
    for keyword in ("const", "default", "example"):
        if keyword in schema:
            return schema[keyword]
    for keyword in ("examples", "enum"):
        if isinstance(values := schema.get(keyword), list) and values:
            return values[0]
    return None


def _value_of_type(schema: JsonObject, root: JsonObject, depth: int) -> JsonValue:
    """Return a value of the type that the schema names, within its bounds."""
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        kind = kind[0]
    elif kind is None and ("properties" in schema or "required" in schema):
        kind = "object"
    match kind:
        case "object":
            declared = _object(schema.get("properties"))
            required = [name for name in _list(schema.get("required")) if isinstance(name, str)]
            fields = {name: declared.get(name, {}) for name in required}
            if depth < _MAX_DEPTH:
                fields |= declared
            return {name: _value(field, root, depth + 1) for name, field in fields.items()}
        case "array":
            count = max(_count_or_zero(schema.get("minItems")), 1 if "items" in schema else 0)
            return [_value(schema.get("items"), root, depth + 1) for _ in range(count)]
        case "integer":
            return _bounded_number(schema)
        case "number":
            return float(_bounded_number(schema))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            text = _TEXTS.get(str(schema.get("format")), "text")
            text = text.ljust(_count_or_zero(schema.get("minLength")), "x")
            max_length = schema.get("maxLength")
            return text[:max_length] if isinstance(max_length, int) else text


def _bounded_number(schema: JsonObject) -> int:
    """Return the number nearest to 1 within the bounds."""
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if isinstance(above := schema.get("exclusiveMinimum"), int | float):
        lowest = above + 1
    if isinstance(below := schema.get("exclusiveMaximum"), int | float):
        highest = below - 1
    value = 1
    if isinstance(highest, int | float):
        value = min(value, int(highest // 1))
    if isinstance(lowest, int | float):
        value = max(value, int(-(-lowest // 1)))
    return value


def _merge_all(parts: list[JsonObject]) -> JsonObject:
    """Return the parts of `allOf` as one schema, with the properties of all."""
    merged: JsonObject = {}
    for part in parts:
        fields = {**_object(merged.get("properties")), **_object(part.get("properties"))}
        required = [*_list(merged.get("required")), *_list(part.get("required"))]
        merged |= part
        if fields:
            merged["properties"] = fields
        if required:
            merged["required"] = required
    return merged


def _without_key(schema: JsonObject, keyword: str) -> JsonObject:
    return {name: value for name, value in schema.items() if name != keyword}


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _count_or_zero(value: JsonValue) -> int:
    return value if isinstance(value, int) and value > 0 else 0
