"""How two JSON values differ in shape: nothing where only values differ, and every field that does."""

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
    def redrawn(one: Any) -> Any:
        match one:
            case bool() | None:
                return one
            case int():
                return data.draw(st.integers())
            case str():
                return data.draw(st.text(max_size=5))
            case list():
                return [redrawn(item) for item in one]
            case dict():
                return {key: redrawn(inner) for key, inner in one.items()}

    assert compare_shapes(value, redrawn(value)) == ()


@given(objects, st.data())
def test_a_field_that_is_renamed_is_gone_and_new(value: dict[str, Any], data: st.DataObject) -> None:
    old = data.draw(st.sampled_from(sorted(value)))
    renamed = {("renamed" if key == old else key): inner for key, inner in value.items()}
    changes = compare_shapes(value, renamed, ("payload",))
    assert {(change.path, change.kind) for change in changes} == {
        (("payload", old), FieldChangeKind.REMOVED),
        (("payload", "renamed"), FieldChangeKind.NEW),
    }
    gone = next(change for change in changes if change.kind is FieldChangeKind.REMOVED)
    found = likely_rename(changes, gone)
    assert found is not None
    assert found.path == ("payload", "renamed")
    assert breaks_reference(gone, f"payload.{old}")
    assert breaks_reference(gone, f"payload.{old}.deeper.0")
    assert not any(breaks_reference(change, "payload.renamed") for change in changes)
    assert not breaks_reference(gone, "context.x")


@given(values, values)
def test_a_key_removed_one_way_is_added_the_other_way(one: JsonValue, other: JsonValue) -> None:
    there, back = compare_shapes(one, other), compare_shapes(other, one)
    opposite = {
        FieldChangeKind.REMOVED: FieldChangeKind.NEW,
        FieldChangeKind.NEW: FieldChangeKind.REMOVED,
        FieldChangeKind.TYPE_CHANGED: FieldChangeKind.TYPE_CHANGED,
    }
    assert {(change.path, opposite[change.kind]) for change in there} == {
        (change.path, change.kind) for change in back
    }


@given(st.lists(values, min_size=1, max_size=4), values)
def test_the_closest_of_several_is_taken(before: list[JsonValue], now: JsonValue) -> None:
    assert closest_changes([], now) is None
    assert closest_changes([*before, now], now) == ()
    found = closest_changes(before, now)
    assert found is not None
    assert len(found) == min(len(compare_shapes(one, now)) for one in before)


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
    assert likely_rename(changes, name) is None  # two are gone: it is unclear which became `title`
    assert compare_shapes(before, {"items": []}) == ()
