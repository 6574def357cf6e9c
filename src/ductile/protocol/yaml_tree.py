"""The located YAML tree: immutable nodes with their source positions (file, line and column).

Scalars are typed by the YAML 1.2 core schema, except that `.inf` and `.nan` are refused: every value ends up
as JSON. `protocol.yaml` builds the tree; paths through it name keys in messages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

from ductile.core.json import JsonValue
from ductile.errors import ConfigError, Problem
from ductile.struct import Value

_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

#: Keys and list positions from the root of a tree to a node.
KeyPath: TypeAlias = tuple[str | int, ...]


class SourceLocation(Value):
    """A position in a file; line and column count from 1."""

    file: str
    line: int
    column: int


class ScalarNode(Value):
    """A single value. `plain` is true when it was written without quotes and may be typed.

    `written` is the text of the file where interpolation replaced it: `text` may then be a secret and must
    not be shown.
    """

    text: str
    plain: bool
    location: SourceLocation
    written: str | None = None


class ListNode(Value):
    items: tuple[Node, ...]
    location: SourceLocation


class MapNode(Value, dict=True):
    """A mapping in written order; its keys are unique, and always text."""

    entries: tuple[tuple[ScalarNode, Node], ...]
    location: SourceLocation

    def get(self, key: str) -> Node | None:
        entry = self.entry(key)
        return None if entry is None else entry[1]

    def entry(self, key: str) -> tuple[ScalarNode, Node] | None:
        """Return a key's own node and its value."""
        return self._by_name.get(key)

    @cached_property
    def _by_name(self) -> dict[str, tuple[ScalarNode, Node]]:
        # Reporting problems of a large map looks up each of its keys: a linear search would be quadratic.
        return {name.text: (name, value) for name, value in self.entries}


Node: TypeAlias = ScalarNode | ListNode | MapNode


def is_empty(node: Node | None) -> bool:
    """Return whether there is no value: no node, nothing after the colon, `~` or `null`."""
    return node is None or (isinstance(node, ScalarNode) and node.plain and _WORDS.get(node.text, 1) is None)


def scalar_value(node: ScalarNode) -> bool | int | float | str | None:
    """Return the value of a scalar by the core schema. Raises ConfigError if JSON cannot hold it."""
    text = node.text
    if not node.plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        try:
            return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
        except ValueError as error:  # Python limits the digits, because the conversion is quadratic
            raise _unusable_number(node) from error
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    if _NOT_JSON.fullmatch(text) or _FLOAT.fullmatch(text):
        raise _unusable_number(node)
    return text


def _unusable_number(node: ScalarNode) -> ConfigError:
    """Return the error for a number that JSON or Python cannot represent."""
    hint = "quote it if text was meant"
    problem = problem_at(
        node.location, (), "this number cannot be used", expected="a finite number", hint=hint
    )
    return invalid_yaml(node.location.file, problem)


def to_plain(node: Node | None) -> JsonValue:
    """Return the tree as JSON values, without locations."""
    match node:
        case None:
            return None
        case ScalarNode():
            return scalar_value(node)
        case ListNode(items=items):
            return [to_plain(item) for item in items]
        case MapNode(entries=entries):
            return {key.text: to_plain(value) for key, value in entries}


def walk(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
    """Yield every node of a tree with its path, parents first."""
    yield path, node
    match node:
        case MapNode(entries=entries):
            for key, value in entries:
                yield from walk(value, (*path, key.text))
        case ListNode(items=items):
            for index, item in enumerate(items):
                yield from walk(item, (*path, index))
        case ScalarNode():
            return


def _follow(node: Node, path: KeyPath) -> Iterator[tuple[SourceLocation, Node]]:
    """Yield the location and the value of every key of a path, up to the first key that does not exist."""
    for part in path:
        match node, part:
            case MapNode(), str() if (entry := node.entry(part)) is not None:
                key, node = entry
                yield key.location, node
            case ListNode(items=items), int() if part < len(items):
                node = items[part]
                yield node.location, node
            case _:
                return


def node_at(root: Node, path: KeyPath) -> Node | None:
    """Return the node at a path; None if there is none."""
    nodes = [root, *(node for _, node in _follow(root, path))]
    return nodes[-1] if len(nodes) > len(path) else None


def location_of(root: Node, path: KeyPath) -> SourceLocation:
    """Return the location of a key; for a missing key, the location of the nearest node around it."""
    return [root.location, *(location for location, _ in _follow(root, path))][-1]


def format_path(path: KeyPath) -> str:
    """Return `("plugins", "echo", "schedules", 0)` as `plugins.echo.schedules[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def problem_at(
    location: SourceLocation | None,
    path: KeyPath,
    message: str,
    *,
    expected: str | None = None,
    found: str | None = None,
    hint: str | None = None,
) -> Problem:
    return Problem(
        message=message,
        file=location.file if location else None,
        line=location.line if location else None,
        column=location.column if location else None,
        key=format_path(path) or None,
        expected=expected,
        found=found,
        hint=hint,
    )


def invalid_yaml(file: str, *problems: Problem) -> ConfigError:
    """Return the error for a file with these problems."""
    return ConfigError(f"{file} cannot be read as YAML", problems=problems)
