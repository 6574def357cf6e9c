"""Paths into the evaluation context, as conditions, templates and baggage write them.

A path is a root and keys or indices, joined by dots: `payload.items.0.name`. In a list of objects with an
`id`, the id can stand for the index: `payload.branches.build.status`. A key with a dot cannot be addressed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, StrEnum
from typing import Final, Literal, TypeAlias

from ductile.core.json import JsonObject, JsonValue
from ductile.core.suggest import closest_match
from ductile.struct import Value, field

FaultPath: TypeAlias = tuple[str | int, ...]
#: The most names in a message about a missing path, and characters of each.
_MAX_NAMES, _MAX_NAME = 8, 40
#: A list index. No list is longer, and Python refuses much longer numbers.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Root(StrEnum):
    PAYLOAD = "payload"
    CONTEXT = "context"
    CONFIG = "config"
    EVENT = "event"
    RUN = "run"


#: The roots that templates and baggage may use. Configuration can contain secrets, which must not spread.
PORTABLE_ROOTS = (Root.PAYLOAD, Root.CONTEXT, Root.RUN)
#: The keys of a run. `payload` is the only one with keys below it.
RUN_KEYS = ("payload", "id", "pipeline")


class _Missing(Enum):
    MISSING = "missing"


#: The result for a path without a value; null is a value.
MISSING: Final = _Missing.MISSING
Missing: TypeAlias = Literal[_Missing.MISSING]


class EvalContext(Value):
    """The values that the expressions of a step can refer to.

    `event` has a `type`, a `source`, and for a webhook `headers` with names in lower case. `run` has the
    `payload` that the run began with, its `id` and its `pipeline`; the `if` of a pipeline is evaluated before
    the run has an id.
    """

    payload: JsonObject = field(default_factory=dict)
    context: JsonObject = field(default_factory=dict)
    config: JsonObject = field(default_factory=dict)
    event: JsonObject = field(default_factory=dict)
    run: JsonObject = field(default_factory=dict)


class ExpressionFault(Value):
    """A fault in a written expression at the key path `where`. Only `found` quotes the expression."""

    where: FaultPath
    message: str
    expected: str | None = None
    found: str | None = None
    hint: str | None = None


def look_up(path: str, context: EvalContext) -> JsonValue | Missing:
    """Return the value at a valid path, or MISSING."""
    root, *keys = path.split(".")
    value: JsonValue = getattr(context, Root(root).value)
    for key in keys:
        match value:
            case dict() if key in value:
                value = value[key]
            case list() if _INDEX.fullmatch(key) and int(key) < len(value):
                value = value[int(key)]
            case list():
                items = (item for item in value if isinstance(item, dict) and item.get("id") == key)
                item = next(items, MISSING)
                if item is MISSING:
                    return MISSING
                value = item
            case _:
                return MISSING
    return value


def describe_nearest_object(path: str, context: EvalContext) -> str | None:
    """Return a phrase with the deepest existing object on a missing path and its names, as a hint.

    None if the object has no names. Values are left out: they may be secret.
    """
    prefix = path
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        value = look_up(prefix, context)
        if value is not MISSING:
            names = [name[:_MAX_NAME] for name in value] if isinstance(value, dict) else []
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            return f"{prefix} has {', '.join(names[:_MAX_NAMES])}{more}" if names else None
    return None


def fault_in_path(path: str, roots: Collection[Root] = tuple(Root)) -> str | None:
    """Return the fault of a path, in words that follow "this path"; None if it is valid."""
    root, *keys = path.split(".")
    if root not in roots:
        return f"begins with none of {', '.join(roots)}"
    if "" in keys or path != path.strip():
        return "has an empty part, or space around it"
    if root == Root.RUN and (not keys or keys[0] not in RUN_KEYS or (len(keys) > 1 and keys[0] != "payload")):
        return "is none of run.id, run.pipeline, run.payload and run.payload.x"
    return None


def suggest_root(path: str, roots: Collection[Root] = tuple(Root)) -> str | None:
    """Return `did you mean payload.x?` for a path whose root is misspelt; None if no root is similar."""
    root, dot, rest = path.partition(".")
    if root in roots:
        return None
    closest = closest_match(root, roots, similarity=0.6)  # short words: one wrong letter of `run` is a third
    return None if closest is None else f"did you mean {closest}{dot}{rest}?"
