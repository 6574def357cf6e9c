"""The shape of JSON answers: which keys, of which types, written so that it can be read and compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_INSTANT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
#: What plugins and operators put in, or what has a schema of its own. Counts with an object or a list in it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Teller:
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
        for key, each in shape.keys.items():
            mark = "?" if shape.seen[key] < shape.objects else ""
            lines.append(f"{deeper}{key}{mark}: {self.text_of(each, key, deeper)}")
        return "\n".join(["{", *lines, f"{indent}}}"])


def _precise(words: set[str]) -> set[str]:
    """The kinds without null, which is written last, and without subkinds of text."""
    return words - {"null"} - ({"instant", "id"} if "text" in words else set())


def learn(shapes: list[Shape]) -> dict[str, str]:
    """The values of keys that are not null and not empty, from all answers."""
    found: dict[str, set[str]] = {}
    for shape in (each for whole in shapes for each in whole.inside()):
        for key, each in shape.keys.items():
            found.setdefault(key, set()).update(_precise(each.words))
    return {key: " or ".join(sorted(_precise(words))) for key, words in found.items() if words}
