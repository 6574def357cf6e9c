"""Compare the structure of two JSON values: fields that were removed, are new, or have another type.

The result has paths and types, but no values, which can be long or secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TypeAlias

from ductile.core.json import JsonValue
from ductile.struct import Value

#: The part of a path that stands for the items of a list.
ITEM = "[]"
#: The most items of a list that are compared. The structure of later items hardly ever differs.
MAX_ITEMS = 100
#: Deeper values are compared by their type only.
MAX_LEVELS = 20

Path: TypeAlias = tuple[str, ...]


_TYPE_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "text",
    list: "list",
    dict: "object",
}


class FieldChangeKind(StrEnum):
    REMOVED = "gone"
    NEW = "new"
    TYPE_CHANGED = "retyped"


class FieldChange(Value):
    """A field whose presence or type differs. `before` and `now` are names of types."""

    path: Path
    kind: FieldChangeKind
    before: str | None
    now: str | None

    @property
    def name(self) -> str:
        return format_path(self.path)


def format_path(path: Path) -> str:
    """Return a path as text: `payload.items[].name`."""
    return ".".join(path).replace(f".{ITEM}", ITEM)


def compare_shapes(before: JsonValue, now: JsonValue, path: Path = ()) -> tuple[FieldChange, ...]:
    """Return all differences, outermost first. Fields below a changed field are not reported."""
    return tuple(_compare((before,), (now,), path, MAX_LEVELS))


def closest_changes(
    before: Sequence[JsonValue], now: JsonValue, path: Path = ()
) -> tuple[FieldChange, ...] | None:
    """Return the differences from the most similar of the values `before`; None if there are none."""
    differences = [compare_shapes(example, now, path) for example in before]
    return min(differences, key=len) if differences else None


def likely_rename(changes: Sequence[FieldChange], removed: FieldChange) -> FieldChange | None:
    """Return the field that probably replaces a removed one: the only new one beside it, of the same type."""
    siblings = [change for change in changes if change.path[:-1] == removed.path[:-1]]
    removed_siblings = [change for change in siblings if change.kind is FieldChangeKind.REMOVED]
    new_siblings = [change for change in siblings if change.kind is FieldChangeKind.NEW]
    if removed_siblings != [removed] or len(new_siblings) != 1 or new_siblings[0].now != removed.before:
        return None
    return new_siblings[0]


def reference_path(reference: str) -> Path:
    """Return a reference of a template as a path: an index stands for any item."""
    root, *keys = reference.split(".")
    return (root, *(ITEM if key.isascii() and key.isdigit() else key for key in keys))


def breaks_reference(change: FieldChange, reference: str) -> bool:
    """Return whether the change breaks a reference."""
    path = reference_path(reference)
    return change.kind is not FieldChangeKind.NEW and path[: len(change.path)] == change.path


def _compare(
    before: Sequence[JsonValue], now: Sequence[JsonValue], path: Path, levels: int
) -> Iterator[FieldChange]:
    """Compare the values at one path: a single one, or the items of a list."""
    old, new = _types(before), _types(now)
    if not old or not new:
        # The shape of the items of an empty list is unknown.
        return
    # Items of a list can have several types; if one of them occurs in both values, nothing has changed.
    is_mixed = (len(old) > 1 or len(new) > 1) and bool({*old} & {*new})
    if old != new and not is_mixed:
        yield FieldChange(
            path=path, kind=FieldChangeKind.TYPE_CHANGED, before=_type_text(old), now=_type_text(new)
        )
        return
    if levels == 0:
        return
    yield from _compare_objects(
        [value for value in before if isinstance(value, dict)],
        [value for value in now if isinstance(value, dict)],
        path,
        levels,
    )
    yield from _compare(_items(before), _items(now), (*path, ITEM), levels - 1)


def _compare_objects(
    before: Sequence[dict[str, JsonValue]], now: Sequence[dict[str, JsonValue]], path: Path, levels: int
) -> Iterator[FieldChange]:
    if not before or not now:
        return
    for key in dict.fromkeys(key for example in (*before, *now) for key in example):
        old = [example[key] for example in before if key in example]
        new = [example[key] for example in now if key in example]
        inner = (*path, key)
        if not new:
            yield FieldChange(
                path=inner, kind=FieldChangeKind.REMOVED, before=_type_text(_types(old)), now=None
            )
        elif not old:
            yield FieldChange(path=inner, kind=FieldChangeKind.NEW, before=None, now=_type_text(_types(new)))
        else:
            yield from _compare(old, new, inner, levels - 1)


def _items(values: Sequence[JsonValue]) -> list[JsonValue]:
    return [item for value in values if isinstance(value, list) for item in value[:MAX_ITEMS]]


def _types(values: Sequence[JsonValue]) -> tuple[str, ...]:
    return tuple(sorted({_TYPE_NAMES[type(value)] for value in values}))


def _type_text(types: tuple[str, ...]) -> str:
    return " or ".join(types)
