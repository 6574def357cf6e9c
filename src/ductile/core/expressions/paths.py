"""Paths into what a step can see, as conditions, templates and baggage write them.

A path is a root and keys or list positions, joined by dots: `payload.items.0.name`. In a list of objects that
have an `id`, an item can be named by it: `payload.branches.build.status`. A key that holds a dot cannot be
reached; its parent can.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, StrEnum
from typing import Final, Literal, TypeAlias

from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value, field

FaultPath: TypeAlias = tuple[str | int, ...]
#: No list is longer, and Python refuses to read numbers that are much longer.
_MAX_DIGITS = 9


class Root(StrEnum):
    PAYLOAD = "payload"
    CONTEXT = "context"
    CONFIG = "config"
    EVENT = "event"


#: What templates and baggage may refer to. Configuration may hold secrets, which must not travel.
PORTABLE_ROOTS = (Root.PAYLOAD, Root.CONTEXT)


class _Missing(Enum):
    MISSING = "missing"


#: What stands where a path leads nowhere: not null, which is a value.
MISSING: Final = _Missing.MISSING
Missing: TypeAlias = Literal[_Missing.MISSING]


class EvalContext(Value):
    """One snapshot of what a step sees when it is created. `event` has a `type`, a `source`, and
    of a webhook `headers` with names in lower case.
    """

    payload: JsonObject = field(default_factory=dict)
    context: JsonObject = field(default_factory=dict)
    config: JsonObject = field(default_factory=dict)
    event: JsonObject = field(default_factory=dict)


class ExpressionFault(Value):
    """Something wrong in what was written; `where` leads to it. Only `found` quotes what was written."""

    where: FaultPath
    message: str
    expected: str | None = None
    found: str | None = None
    hint: str | None = None


def look_up(path: str, scope: EvalContext) -> JsonValue | Missing:
    """The value at a path that was judged good, or that there is none."""
    root, *keys = path.split(".")
    found: JsonValue = getattr(scope, Root(root).value)
    for key in keys:
        match found:
            case dict() if key in found:
                found = found[key]
            case list():
                item = _find_item(found, key)
                if item is MISSING:
                    return MISSING
                found = item
            case _:
                return MISSING
    return found


def _find_item(items: list[JsonValue], key: str) -> JsonValue | Missing:
    """The item at this position; else the first object with this `id`."""
    position = _list_index(key)
    if position is not None and position < len(items):
        return items[position]
    return next((item for item in items if isinstance(item, dict) and item.get("id") == key), MISSING)


def _list_index(key: str) -> int | None:
    is_number = key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS
    return int(key) if is_number and (key == "0" or key[0] != "0") else None


def fault_in_path(path: str, roots: Collection[Root] = tuple(Root)) -> str | None:
    """What is wrong with a path, if anything, in words that follow "this path"."""
    root, *keys = path.split(".")
    if root not in roots:
        return f"begins with none of {', '.join(roots)}"
    if "" in keys or path != path.strip():
        return "has an empty part, or space around it"
    return None
