"""Differences in the shape of two JSON values: none if only values differ, and every changed field."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.json import JsonValue
from ductile.core.json_shapes import (
    FieldChangeKind,
    breaks_reference,
    closest_changes,
    compare_shapes,
    format_path,
    likely_rename,
)

names = st.text(alphabet="abcdef", min_size=1, max_size=3)
values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(names, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(names, values, min_size=1, max_size=4)


@given(values)
def test_a_value_has_the_shape_of_itself(value: JsonValue) -> None:
    assert compare_shapes(value, value) == ()


@given(objects, st.data())
def test_other_values_of_the_same_types_are_the_same_shape(
    value: dict[str, Any], data: st.DataObject
) -> None:
    def redraw(node: Any) -> Any:
        match node:
            case bool() | None:
                return node
            case int():
                return data.draw(st.integers())
            case str():
                return data.draw(st.text(max_size=5))
            case list():
                return [redraw(item) for item in node]
            case dict():
                return {key: redraw(inner) for key, inner in node.items()}

    assert compare_shapes(value, redraw(value)) == ()


@given(objects, st.data())
def test_a_field_that_is_renamed_is_gone_and_new(value: dict[str, Any], data: st.DataObject) -> None:
    old = data.draw(st.sampled_from(sorted(value)))
    renamed = {("renamed" if key == old else key): inner for key, inner in value.items()}
    changes = compare_shapes(value, renamed, ("payload",))
    assert {(change.path, change.kind) for change in changes} == {
        (("payload", old), FieldChangeKind.REMOVED),
        (("payload", "renamed"), FieldChangeKind.NEW),
    }
    removed = next(change for change in changes if change.kind is FieldChangeKind.REMOVED)
    rename = likely_rename(changes, removed)
    assert rename is not None
    assert rename.path == ("payload", "renamed")
    assert breaks_reference(removed, f"payload.{old}")
    assert breaks_reference(removed, f"payload.{old}.deeper.0")
    assert not any(breaks_reference(change, "payload.renamed") for change in changes)
    assert not breaks_reference(removed, "context.x")


@given(values, values)
def test_a_key_removed_one_way_is_added_the_other_way(first: JsonValue, second: JsonValue) -> None:
    forward, backward = compare_shapes(first, second), compare_shapes(second, first)
    opposite = {
        FieldChangeKind.REMOVED: FieldChangeKind.NEW,
        FieldChangeKind.NEW: FieldChangeKind.REMOVED,
        FieldChangeKind.TYPE_CHANGED: FieldChangeKind.TYPE_CHANGED,
    }
    assert {(change.path, opposite[change.kind]) for change in forward} == {
        (change.path, change.kind) for change in backward
    }


@given(st.lists(values, min_size=1, max_size=4), values)
def test_the_closest_of_several_is_taken(before: list[JsonValue], now: JsonValue) -> None:
    assert closest_changes([], now) is None
    assert closest_changes([*before, now], now) == ()
    changes = closest_changes(before, now)
    assert changes is not None
    assert len(changes) == min(len(compare_shapes(candidate, now)) for candidate in before)


@given(objects, st.text(min_size=6, max_size=6))
def test_values_are_never_shown(value: dict[str, Any], secret: str) -> None:
    changes = compare_shapes({"token": f"v:{secret}"}, value)
    assert all(f"v:{secret}" not in str(change) for change in changes)


def test_lists_are_compared_by_their_items() -> None:
    before: JsonValue = {"items": [{"id": 1, "name": "a"}, {"id": 2, "name": "b", "note": "x"}]}
    now: JsonValue = {"items": [{"id": "1", "title": "a"}]}
    changes = compare_shapes(before, now, ("payload",))
    assert {(format_path(change.path), change.kind, change.before, change.now) for change in changes} == {
        ("payload.items[].id", FieldChangeKind.TYPE_CHANGED, "number", "text"),
        ("payload.items[].name", FieldChangeKind.REMOVED, "text", None),
        ("payload.items[].note", FieldChangeKind.REMOVED, "text", None),
        ("payload.items[].title", FieldChangeKind.NEW, None, "text"),
    }
    name = next(change for change in changes if change.path[-1] == "name")
    assert breaks_reference(name, "payload.items.0.name")
    assert likely_rename(changes, name) is None  # two fields are gone, and either may be `title`
    assert compare_shapes(before, {"items": []}) == ()
