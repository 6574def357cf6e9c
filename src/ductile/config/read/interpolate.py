"""Replaces `${VAR}` and `${VAR:-default}` inside scalars. Pure: the variables are an argument.

Values are put into scalars that are parsed already, so they cannot change the structure of a document. Keys
are not interpolated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ductile.config.secrets import looks_secret
from ductile.errors import Problem
from ductile.protocol.yaml_tree import KeyPath, ListNode, MapNode, Node, ScalarNode, problem_at, walk
from ductile.struct import replace

#: An escape, a well-formed reference, or the beginning of something that is neither.
_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)
#: Variables that are set for each plugin process. References to them in a plugin's `config` and `env` stay.
_RUNTIME_PREFIX = "DUCTILE_"
_SECTIONS_WITH_RUNTIME_VARIABLES = (("config",), ("env",))


def interpolate(
    root: Node, variables: Mapping[str, str], unreadable: Sequence[Path] = ()
) -> tuple[Node, tuple[Problem, ...]]:
    """Return the tree with every reference replaced, and a problem for each one that is not.

    `unreadable` are environment files that cannot be read: a missing variable may be in one of them.
    """
    interpolator = _Interpolator(variables, unreadable)
    return interpolator.replace_in(root, ()), tuple(interpolator.problems)


def has_reference(text: str) -> bool:
    return any(match["name"] or match["broken"] for match in _REFERENCE.finditer(text))


def variables_in(root: Node | None) -> frozenset[str]:
    """Return the names of the variables that a tree refers to."""
    nodes = () if root is None else walk(root)
    texts = (node.text for _, node in nodes if isinstance(node, ScalarNode))
    return frozenset(match["name"] for text in texts for match in _REFERENCE.finditer(text) if match["name"])


def has_default(written: str) -> bool:
    """Return whether a reference has a default that is not empty: a literal value in the file."""
    return any(match["default"] for match in _REFERENCE.finditer(written))


def without_defaults(written: str) -> str:
    """Return a scalar as written, with the names of variables but without their defaults, to be shown."""
    return _REFERENCE.sub(lambda match: f"${{{match['name']}}}" if match["name"] else match[0], written)


class _Interpolator:
    def __init__(self, variables: Mapping[str, str], unreadable: Sequence[Path]) -> None:
        self._variables = variables
        self._unread = unreadable
        self.problems: list[Problem] = []

    def replace_in(self, node: Node, path: KeyPath) -> Node:
        match node:
            case ListNode(items=items):
                replaced = (self.replace_in(item, (*path, index)) for index, item in enumerate(items))
                return replace(node, items=tuple(replaced))
            case MapNode(entries=entries):
                pairs = ((key, self.replace_in(value, (*path, key.text))) for key, value in entries)
                return replace(node, entries=tuple(pairs))
            case ScalarNode():
                return self._replace_in_scalar(node, path) if "${" in node.text else node

    def _replace_in_scalar(self, node: ScalarNode, path: KeyPath) -> ScalarNode:
        substituted = False

        def value_of(match: re.Match[str]) -> str:
            nonlocal substituted
            name, default = match["name"], match["default"]
            if match["broken"]:
                hint = "write ${NAME} or ${NAME:-default}; for the characters themselves write $${"
                message = "this is not a reference to a variable"
                self.problems.append(problem_at(node.location, path, message, hint=hint))
                return match[0]
            if name is None:
                return "${"
            if (
                name.startswith(_RUNTIME_PREFIX)
                and path[:1] == ("plugins",)
                and path[2:3] in _SECTIONS_WITH_RUNTIME_VARIABLES
            ):
                return match[0]
            value = self._variables.get(name)
            if default is not None and not value:
                value = default
            if value is None:
                message, hint = f"the variable {name} is not set", self._how_to_set(name, path)
                self.problems.append(problem_at(node.location, path, message, hint=hint))
                return match[0]
            substituted = True
            return value

        text = _REFERENCE.sub(value_of, node.text)
        return replace(node, text=text, written=node.text if substituted else None)

    def _how_to_set(self, name: str, path: KeyPath) -> str:
        """Return a hint. It never advises a default for a secret, which would be a literal in the file."""
        if self._unread:
            return f"put back {' or '.join(map(str, self._unread))} if {name} is in it, or set {name}"
        if looks_secret(name) or any(looks_secret(str(key)) for key in path) or path[:1] == ("tokens",):
            return f"set {name} in the environment, or in a file that environment_vars.include names"
        return f"set {name}, or give a default: ${{{name}:-value}}"
