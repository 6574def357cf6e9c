"""The shape of JSON answers: which keys, of which types, told so that it can be read and compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_INSTANT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
#: What plugins and operators put in: any JSON. A key only counts here with an object or a list in it.
OPEN = frozenset(
    {"payload", "result", "state", "data", "context", "details", "fact", "value", "input_schema", "raw"}
)
#: Objects whose keys are names, so that every value has the same shape.
BY_NAME = frozenset({"breakers", "files", "counts"})


@dataclass(slots=True)
class Shape:
    """Everything that was seen in one place."""

    words: set[str] = field(default_factory=set)
    keys: dict[str, Shape] = field(default_factory=dict)
    #: How often an object was seen here, and how often with each key.
    objects: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    items: Shape | None = None
    values: Shape | None = None

    def add(self, value: Any, key: str = "") -> None:
        match value:
            case dict() | list() if key in OPEN:
                self.words.add("any JSON")
            case dict() if key in BY_NAME:
                self.values = self.values or Shape()
                for each in value.values():
                    self.values.add(each)
            case dict():
                self._add_object(value)
            case list():
                self.items = self.items or Shape()
                for each in value:
                    self.items.add(each)
            case _:
                self.words.add(_word(value))

    def _add_object(self, value: dict[str, Any]) -> None:
        self.objects += 1
        for name, each in value.items():
            self.keys.setdefault(name, Shape()).add(each, name)
            self.seen[name] = self.seen.get(name, 0) + 1

    def merge(self, other: Shape) -> None:
        self.words |= other.words
        self.objects += other.objects
        for name, shape in other.keys.items():
            self.keys.setdefault(name, Shape()).merge(shape)
            self.seen[name] = self.seen.get(name, 0) + other.seen[name]
        for part in ("items", "values"):
            if (theirs := getattr(other, part)) is not None:
                ours = getattr(self, part) or Shape()
                ours.merge(theirs)
                setattr(self, part, ours)

    def inside(self) -> list[Shape]:
        """This shape and all shapes in it."""
        parts = [*self.keys.values(), *(part for part in (self.items, self.values) if part)]
        return [self, *(each for part in parts for each in part.inside())]


def _word(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case str() if _INSTANT.fullmatch(value):
            return "instant"
        case str() if _ID.fullmatch(value):
            return "id"
    return "text"


def told(shape: Shape, names: dict[frozenset[str], str], *, indent: str = "", title: bool = True) -> str:
    """As a block of text. An object whose keys are those of a named one is told by that name, unless it
    is told in full as a title.
    """
    words = shape.words - {"null", "any JSON"}
    if len(words - {"text"}) < len(words):
        words -= {"instant", "id"}
    parts = sorted(words)
    if "any JSON" in shape.words:
        return "any JSON"
    if shape.objects:
        name = names.get(frozenset(shape.keys))
        parts.append(name if name and not title else _object(shape, names, indent))
    if shape.items is not None:
        inner = told(shape.items, names, indent=indent, title=False)
        parts.append(f"[{inner}]")
    if shape.values is not None:
        parts.append(f"{{name: {told(shape.values, names, indent=indent, title=False)}}}")
    parts += ["null"] if "null" in shape.words else []
    return " or ".join(parts)


def _object(shape: Shape, names: dict[frozenset[str], str], indent: str) -> str:
    deeper = f"{indent}  "
    lines = []
    for key, each in shape.keys.items():
        mark = "?" if shape.seen[key] < shape.objects else ""
        lines.append(f"{deeper}{key}{mark}: {told(each, names, indent=deeper, title=False)}")
    return "\n".join(["{", *lines, f"{indent}}}"])
