"""Sample payloads are valid for the schema they are generated from (`plugin test`)."""

from __future__ import annotations

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from ductile.admin.plugin_dev.sample_payload import sample_payload
from ductile.core.json import JsonObject, JsonValue

BOUNDS = st.integers(-1000, 1000)


def bounded(kind: str) -> st.SearchStrategy[JsonObject]:
    def fields(bounds: tuple[int, int]) -> JsonObject:
        return {"type": kind, "minimum": min(bounds), "maximum": max(bounds)}

    return st.tuples(BOUNDS, BOUNDS).map(fields)


LEAVES: st.SearchStrategy[JsonObject] = st.one_of(
    st.sampled_from(
        [{"type": "string"}, {"type": "boolean"}, {"type": "null"}, {"type": ["number", "null"]}]
    ),
    st.builds(lambda n: {"type": "string", "minLength": n}, st.integers(0, 20)),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 20)),
    st.builds(lambda n: {"type": "integer", "exclusiveMinimum": n}, BOUNDS),
    st.builds(lambda n: {"type": "number", "exclusiveMaximum": n}, BOUNDS),
    st.builds(lambda values: {"enum": values}, st.lists(st.text(), min_size=1)),
    st.builds(lambda value: {"const": value}, st.integers()),
    st.sampled_from([{"type": "string", "format": name} for name in ("uri", "date", "date-time", "uuid")]),
    bounded("integer"),
    bounded("number"),
)


def objects(inner: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    fields = st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=4)
    return fields.map(lambda named: {"type": "object", "properties": dict(named), "required": list(named)})


def arrays(inner: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    return st.builds(
        lambda item, n: {"type": "array", "items": item, "minItems": n}, inner, st.integers(0, 3)
    )


def choices(inner: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": list(parts)})


SCHEMAS = objects(
    st.recursive(LEAVES, lambda inner: st.one_of(objects(inner), arrays(inner), choices(inner)), max_leaves=4)
)


@given(SCHEMAS)
def test_a_sample_fits_its_schema(schema: JsonObject) -> None:
    """A command that validates its input can be tested without an example."""
    assert jsonschema_rs.is_valid(schema, sample_payload(schema), validate_formats=True)


JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
WORDS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "required",
        "enum",
        "anyOf",
        "allOf",
        "$ref",
        "minimum",
        "minLength",
        "examples",
    ]
)


@given(st.dictionaries(WORDS, JSON) | st.booleans() | st.none())
def test_any_schema_has_a_sample(schema: JsonObject | bool | None) -> None:
    """A contradictory schema must not prevent the test of a plugin."""
    assert isinstance(sample_payload(schema), dict)


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree: JsonObject = {"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]}
    assert "child" in sample_payload(tree)


def test_references_and_parts_are_put_together() -> None:
    schema: JsonObject = {
        "$defs": {"size": {"type": "integer", "minimum": 3}},
        "allOf": [
            {"properties": {"a": {"$ref": "#/$defs/size"}}},
            {"properties": {"b": {"default": "x"}}, "required": ["b"]},
        ],
    }
    assert sample_payload(schema) == {"a": 3, "b": "x"}
