"""Typed reading of one mapping of a manifest, with a located problem for everything that cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.core.suggest import closest, did_you_mean
from ductile.protocol.yaml_tree import (
    ListNode,
    MapNode,
    ScalarNode,
    format_path,
    is_empty,
    location_of,
    problem_at,
    scalar_value,
    to_plain,
)
from ductile.struct import Value, field

if TYPE_CHECKING:
    from ductile.core.json import JsonValue
    from ductile.errors import Problem
    from ductile.protocol.yaml_tree import KeyPath, Node, SourceLocation

#: Similarity of a written key to a missing one. It is high because `name` and `names` are both keys.
_MISSPELT = 0.8


def describe(node: Node | None) -> str:
    """Return a few words for a node, to follow "found"."""
    match node:
        case ListNode():
            return "a list"
        case MapNode():
            return "a mapping"
        case ScalarNode(text=text) if not is_empty(node):
            return f'"{text}"'
        case _:
            return "nothing"


class FieldReader(Value):
    """One mapping with its key path. `problems` is shared with the readers of the mappings inside it.

    Each method returns the usable value and notes a problem otherwise, so that an author sees all problems of
    a manifest at once.
    """

    node: MapNode
    path: KeyPath = ()
    problems: list[Problem] = field(default_factory=list)
    #: The keys that have been read.
    known: set[str] = field(default_factory=set)

    def inside(self, node: MapNode, *path: str | int) -> FieldReader:
        return FieldReader(node=node, path=(*self.path, *path), problems=self.problems)

    def get(self, name: str) -> Node | None:
        self.known.add(name)
        return self.node.get(name)

    def complain(
        self, location: SourceLocation | None, path: KeyPath, message: str, **parts: str | None
    ) -> None:
        self.problems.append(problem_at(location, (*self.path, *path), message, **parts))

    def refuse(self, name: str, expected: str, *, hint: str | None = None) -> None:
        """Note that a key is missing or has a value that cannot be used."""
        node = self.get(name)
        location = location_of(self.node, (name,))
        message = "has a value that cannot be used"
        if node is None:
            message = "is missing"
            keys = {key.text: key for key, _ in self.node.entries}
            if (misspelt := closest(name, keys, similarity=_MISSPELT)) is not None:
                location, hint = keys[misspelt].location, f"{misspelt} is written instead"
        key = format_path((*self.path, name))
        self.complain(
            location, (name,), f"{key} {message}", expected=expected, found=describe(node), hint=hint
        )

    def text(self, name: str, *, expected: str | None = None, hint: str | None = None) -> str:
        """Return a scalar as written: version `1.10` is not 1.1. It is required when `expected` is given."""
        node = self.get(name)
        if isinstance(node, ScalarNode) and not is_empty(node) and (node.text.strip() or expected is None):
            return node.text
        if expected is not None or not is_empty(node):
            self.refuse(name, expected or "text", hint=hint)
        return ""

    def flag(self, name: str) -> bool | None:
        node = self.get(name)
        if is_empty(node):
            return None
        if isinstance(node, ScalarNode) and isinstance(value := scalar_value(node), bool):
            return value
        self.refuse(name, "true or false")
        return None

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        node = self.get(name)
        if is_empty(node):
            return None
        if isinstance(node, ScalarNode) and node.text in allowed:
            return node.text
        hint = did_you_mean(node.text, allowed) if isinstance(node, ScalarNode) else None
        self.refuse(name, " or ".join(allowed), hint=hint)
        return None

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of names. The keys of a mapping are accepted too; its values are remarks."""
        node = self.get(name)
        match node:
            case ListNode(items=items) if all(isinstance(item, ScalarNode) for item in items):
                return tuple(item.text for item in items if isinstance(item, ScalarNode))
            case MapNode(entries=entries):
                return tuple(key.text for key, _ in entries)
            case _:
                if not is_empty(node):
                    self.refuse(name, "a list of names")
                return ()

    def others(self) -> dict[str, JsonValue]:
        """Return the entries that no method has read."""
        return {key.text: to_plain(value) for key, value in self.node.entries if key.text not in self.known}
