"""`${VAR}` and `${VAR:-default}` inside scalars (SPEC 2.1). Pure: the variables are an argument.

A value is put into a scalar that has already been parsed, so it can change what the scalar says and
never what the document means. Keys are not interpolated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ductile.config.keypath import KeyPath, problem_at
from ductile.protocol.yaml12 import ListNode, MapNode, Node, ScalarNode
from ductile.value import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.errors import Problem

#: An escape, a well-formed reference, or the beginning of something that is neither.
_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)
#: Set for each plugin process when it runs, hence left alone in what is handed to plugins.
_RUNTIME_PREFIX = "DUCTILE_"


@dataclass(slots=True)
class _Outcome:
    """What happened in one scalar."""

    substituted: bool = False
    complaints: list[Problem] = field(default_factory=list)


def interpolate(root: Node, variables: Mapping[str, str]) -> tuple[Node, tuple[Problem, ...]]:
    """The tree with every reference replaced, and a problem for each one that could not be."""
    problems: list[Problem] = []
    return _walk(root, (), variables, problems), tuple(problems)


def has_reference(text: str) -> bool:
    return any(found["name"] or found["broken"] for found in _REFERENCE.finditer(text))


def names_in(node: Node | None) -> frozenset[str]:
    """The variables that a tree refers to."""
    match node:
        case None:
            return frozenset()
        case ScalarNode(text=text):
            return frozenset(found["name"] for found in _REFERENCE.finditer(text) if found["name"])
        case ListNode(items=items):
            return frozenset().union(*map(names_in, items))
        case MapNode(entries=entries):
            return frozenset().union(*(names_in(value) for _, value in entries))


def literal_default(written: str) -> bool:
    """Whether a reference carries a default that says something: it is then written in the clear."""
    return any(found["default"] for found in _REFERENCE.finditer(written))


def without_defaults(written: str) -> str:
    """A scalar as written, fit to be shown: names of variables, but no default values."""
    return _REFERENCE.sub(lambda found: f"${{{found['name']}}}" if found["name"] else found[0], written)


def _walk(node: Node, path: KeyPath, variables: Mapping[str, str], problems: list[Problem]) -> Node:
    match node:
        case ScalarNode():
            return _scalar(node, path, variables, problems)
        case ListNode(items=items):
            walked = (_walk(item, (*path, index), variables, problems) for index, item in enumerate(items))
            return replace(node, items=tuple(walked))
        case MapNode(entries=entries):
            pairs = ((key, _walk(value, (*path, key.text), variables, problems)) for key, value in entries)
            return replace(node, entries=tuple(pairs))


def _scalar(node: ScalarNode, path: KeyPath, variables: Mapping[str, str], problems: list[Problem]) -> Node:
    if "${" not in node.text:
        return node
    outcome = _Outcome()

    def value_of(found: re.Match[str]) -> str:
        return _value(found, node, path, variables, outcome)

    text = _REFERENCE.sub(value_of, node.text)
    problems += outcome.complaints
    return replace(node, text=text, written=node.text if outcome.substituted else None)


def _value(
    found: re.Match[str], node: ScalarNode, path: KeyPath, variables: Mapping[str, str], outcome: _Outcome
) -> str:
    name, default = found["name"], found["default"]
    if found["broken"]:
        hint = "write ${NAME} or ${NAME:-default}; for the characters themselves write $${"
        outcome.complaints.append(
            problem_at(node.place, path, "this is not a reference to a variable", hint=hint)
        )
    elif name is None:
        return "${"
    elif name.startswith(_RUNTIME_PREFIX) and _is_for_a_plugin(path):
        return found[0]
    elif default is not None and not variables.get(name):
        outcome.substituted = True
        return default
    elif name in variables:
        outcome.substituted = True
        return variables[name]
    else:
        hint = f"set {name}, or give a default: ${{{name}:-value}}"
        outcome.complaints.append(problem_at(node.place, path, f"the variable {name} is not set", hint=hint))
    return found[0]


def _is_for_a_plugin(path: KeyPath) -> bool:
    match path:
        case ("plugins", _, "config" | "env", *_):
            return True
        case _:
            return False
