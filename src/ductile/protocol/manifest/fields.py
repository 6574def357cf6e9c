"""Reading the fields of a manifest: typed, and with a place for everything that is wrong.

A `FieldReader` is one mapping of the file with its key path.
Each reading method takes what it can use and notes
what it cannot, so that one reading tells its author everything at once.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ductile.errors import Problem
from ductile.protocol.yaml import ListNode, MapNode, ScalarNode, SourceLocation, scalar_value, to_plain
from ductile.struct import Value, field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ductile.core.json import JsonValue
    from ductile.protocol.yaml import Node


def describe(node: Node | None) -> str:
    """What was found, for the end of a sentence."""
    match node:
        case None:
            return "nothing"
        case ListNode():
            return "a list"
        case MapNode():
            return "a mapping"
        case ScalarNode() if is_null(node):
            return "nothing"
        case ScalarNode(text=text):
            return f'"{text}"'


def is_null(node: Node | None) -> bool:
    return node is None or (isinstance(node, ScalarNode) and node.plain and scalar_value(node) is None)


#: How alike a key has to be to one that is missing. Keys such as `name` and `names` are both known.
_A_SLIP = 0.8


def closest(word: str, known: Iterable[str]) -> str | None:
    """A did-you-mean hint, when something known is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else None


class FieldReader(Value):
    """One mapping of the file; `problems` is shared with every mapping inside it."""

    node: MapNode
    path: str = ""
    problems: list[Problem] = field(default_factory=list)

    def key(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def place_of(self, name: str) -> SourceLocation:
        """Where the key is written, else where the mapping begins."""
        return next((key.place for key, _ in self.node.entries if key.text == name), self.node.place)

    def inside(self, node: MapNode, path: str) -> FieldReader:
        return FieldReader(node=node, path=path, problems=self.problems)

    def complain(
        self,
        message: str,
        key: str,
        place: SourceLocation,
        *,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problems.append(
            Problem(
                message=message,
                file=place.file,
                line=place.line,
                column=place.column,
                key=key,
                expected=expected,
                found=found,
                hint=hint,
            )
        )

    def refuse(self, name: str, expected: str, *, hint: str | None = None) -> None:
        """The value of a key is not what it has to be."""
        node = self.node.get(name)
        message = "is missing" if node is None else "has a value that cannot be used"
        place = self.place_of(name)
        if node is None and (slip := self._misspelt(name)) is not None:
            place, hint = slip.place, f"{slip.text} is written instead"
        self.complain(
            f"{self.key(name)} {message}",
            self.key(name),
            place,
            expected=expected,
            found=describe(node),
            hint=hint,
        )

    def _misspelt(self, name: str) -> ScalarNode | None:
        """The key that was probably meant to be this one."""
        keys = {key.text: key for key, _ in self.node.entries}
        near = difflib.get_close_matches(name, list(keys), n=1, cutoff=_A_SLIP)
        return keys[near[0]] if near else None

    def text(self, name: str, *, expected: str | None = None, hint: str | None = None) -> str:
        """A scalar as it is written, so that version `1.10` stays that; required when `expected` is given."""
        node = self.node.get(name)
        if isinstance(node, ScalarNode) and not is_null(node) and (node.text.strip() or expected is None):
            return node.text
        if expected is not None or not is_null(node):
            self.refuse(name, expected or "text", hint=hint)
        return ""

    def flag(self, name: str) -> bool | None:
        node = self.node.get(name)
        if is_null(node):
            return None
        if isinstance(node, ScalarNode) and isinstance(value := scalar_value(node), bool):
            return value
        self.refuse(name, "true or false")
        return None

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        node = self.node.get(name)
        if is_null(node):
            return None
        if isinstance(node, ScalarNode) and node.text in allowed:
            return node.text
        hint = closest(node.text, allowed) if isinstance(node, ScalarNode) else None
        self.refuse(name, " or ".join(allowed), hint=hint)
        return None

    def names(self, name: str) -> tuple[str, ...]:
        """A list of names; the keys of a mapping serve as well, their values are taken as remarks."""
        node = self.node.get(name)
        match node:
            case ListNode(items=items) if all(isinstance(item, ScalarNode) for item in items):
                return tuple(item.text for item in items if isinstance(item, ScalarNode))
            case MapNode(entries=entries):
                return tuple(key.text for key, _ in entries)
            case _ if is_null(node):
                return ()
            case _:
                self.refuse(name, "a list of names")
                return ()

    def others(self, known: frozenset[str]) -> dict[str, JsonValue]:
        """The keys that nobody here asks for; they are kept, since they may mean something to others."""
        return {key.text: to_plain(value) for key, value in self.node.entries if key.text not in known}
