"""The shape of JSON responses: their keys and types, as a text that can be compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_INSTANT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
#: Keys whose objects and lists come from plugins or operators, or have a schema of their own.
OPEN = frozenset(
    {
        *("payload", "result", "state", "data", "context", "details", "fact", "value", "config", "graph"),
        *("if", "input_schema", "output_schema", "document"),
    }
)
#: Objects whose keys are names, so that every value has the same shape.
BY_NAME = frozenset({"breakers", "files", "counts", "by_status"})


@dataclass(slots=True)
class Shape:
    """The types of all values in one place of the responses."""

    words: set[str] = field(default_factory=set)
    keys: dict[str, Shape] = field(default_factory=dict)
    #: The number of objects, and the number of objects with each key.
    objects: int = 0
    key_counts: dict[str, int] = field(default_factory=dict)
    items: Shape | None = None
    values: Shape | None = None

    def add(self, value: Any, key: str = "") -> None:
        match value:
            case dict() | list() if key in OPEN:
                self.words.add("any JSON")
            case dict() if key in BY_NAME:
                self.values = self.values or Shape()
                for inner in value.values():
                    self.values.add(inner)
            case dict():
                self._add_object(value)
            case list():
                self.items = self.items or Shape()
                for inner in value:
                    self.items.add(inner)
            case _:
                self.words.add(_word(value))

    def _add_object(self, value: dict[str, Any]) -> None:
        self.objects += 1
        for name, inner in value.items():
            self.keys.setdefault(name, Shape()).add(inner, name)
            self.key_counts[name] = self.key_counts.get(name, 0) + 1

    def merge(self, other: Shape) -> None:
        self.words |= other.words
        self.objects += other.objects
        for name, shape in other.keys.items():
            self.keys.setdefault(name, Shape()).merge(shape)
            self.key_counts[name] = self.key_counts.get(name, 0) + other.key_counts[name]
        for part in ("items", "values"):
            if (other_part := getattr(other, part)) is not None:
                own_part = getattr(self, part) or Shape()
                own_part.merge(other_part)
                setattr(self, part, own_part)

    def inside(self) -> list[Shape]:
        """Return this shape and all shapes in it."""
        parts = [*self.keys.values(), *(part for part in (self.items, self.values) if part)]
        return [self, *(shape for part in parts for shape in part.inside())]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeWriter:
    """Writes shapes as text.

    An object that has a name is written as the name. A value that was always null or empty gets its type from
    the same key elsewhere or from `known`. Keys in `nullable` may be null although none was.
    """

    names: dict[frozenset[str], str]
    known: dict[str, str]
    nullable: frozenset[str] = frozenset()

    def text_of(self, shape: Shape, key: str = "", indent: str = "", *, in_full: bool = False) -> str:
        if "any JSON" in shape.words:
            return "any JSON"
        parts = sorted(_precise(shape.words))
        if shape.objects:
            name = self.names.get(frozenset(shape.keys))
            parts.append(name if name and not in_full else self._object(shape, indent))
        if shape.items is not None:
            parts.append(f"[{self.text_of(shape.items, f'{key}[]', indent)}]")
        if shape.values is not None:
            parts.append(f"{{name: {self.text_of(shape.values, key, indent)}}}")
        if not parts or parts == ["[]"]:
            parts = [self.known.get(key.removesuffix("[]"), "?")]
        may_be_null = not in_full and ("null" in shape.words or key in self.nullable)
        return " or ".join(parts + (["null"] if may_be_null else []))

    def _object(self, shape: Shape, indent: str) -> str:
        deeper = f"{indent}  "
        lines = []
        for key, inner in shape.keys.items():
            mark = "?" if shape.key_counts[key] < shape.objects else ""
            lines.append(f"{deeper}{key}{mark}: {self.text_of(inner, key, deeper)}")
        return "\n".join(["{", *lines, f"{indent}}}"])


def _precise(words: set[str]) -> set[str]:
    """Return the types without null, and without instants and ids where other text occurs too."""
    return words - {"null"} - ({"instant", "id"} if "text" in words else set())


def types_by_key(shapes: list[Shape]) -> dict[str, str]:
    """Return the types of each key in all responses, without null and empty values."""
    types: dict[str, set[str]] = {}
    for shape in (inner for whole in shapes for inner in whole.inside()):
        for key, inner in shape.keys.items():
            types.setdefault(key, set()).update(_precise(inner.words))
    return {key: " or ".join(sorted(_precise(words))) for key, words in types.items() if words}
