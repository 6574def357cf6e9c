"""`${VAR}` and `${VAR:-default}` inside scalars. Pure: the variables are an argument.

A value is put into a scalar that has already been parsed, so it can change what the scalar says and
never what the document means. Keys are not interpolated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ductile.config.key_paths import KeyPath, problem_at
from ductile.config.secrets import looks_secret
from ductile.protocol.yaml import ListNode, MapNode, Node, ScalarNode
from ductile.struct import Value, hide_in_repr, replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ductile.errors import Problem

#: An escape, a well-formed reference, or the beginning of something that is neither.
_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)
#: Set for each plugin process when it runs, hence left alone in what is handed to plugins.
_RUNTIME_PREFIX = "DUCTILE_"


@hide_in_repr("variables")
class _Known(Value):
    variables: Mapping[str, str]
    unread: Sequence[Path]


@dataclass(slots=True)
class _Outcome:
    """What happened in one scalar."""

    substituted: bool = False
    complaints: list[Problem] = field(default_factory=list)


def interpolate(
    root: Node, variables: Mapping[str, str], unread: Sequence[Path] = ()
) -> tuple[Node, tuple[Problem, ...]]:
    """The tree with every reference replaced, and a problem for each one that could not be.

    `unread` are files of variables that could not be read: what is missing may be in one of them.
    """
    problems: list[Problem] = []
    known = _Known(variables=variables, unread=unread)
    return _walk(root, (), known, problems), tuple(problems)


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


def _walk(node: Node, path: KeyPath, known: _Known, problems: list[Problem]) -> Node:
    match node:
        case ScalarNode():
            return _scalar(node, path, known, problems)
        case ListNode(items=items):
            walked = (_walk(item, (*path, index), known, problems) for index, item in enumerate(items))
            return replace(node, items=tuple(walked))
        case MapNode(entries=entries):
            pairs = ((key, _walk(value, (*path, key.text), known, problems)) for key, value in entries)
            return replace(node, entries=tuple(pairs))


def _scalar(node: ScalarNode, path: KeyPath, known: _Known, problems: list[Problem]) -> Node:
    if "${" not in node.text:
        return node
    outcome = _Outcome()

    def value_of(found: re.Match[str]) -> str:
        return _value(found, node, path, known, outcome)

    text = _REFERENCE.sub(value_of, node.text)
    problems += outcome.complaints
    return replace(node, text=text, written=node.text if outcome.substituted else None)


def _value(found: re.Match[str], node: ScalarNode, path: KeyPath, known: _Known, outcome: _Outcome) -> str:
    name, default, variables = found["name"], found["default"], known.variables
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
        hint = _how_to_set(name, path, known.unread)
        outcome.complaints.append(problem_at(node.place, path, f"the variable {name} is not set", hint=hint))
    return found[0]


def _how_to_set(name: str, path: KeyPath, unread: Sequence[Path]) -> str:
    """A default is no advice for a secret, which would then be written in the clear."""
    if unread:
        return f"put back {' or '.join(map(str, unread))} if {name} is in it, or set {name}"
    if looks_secret(name) or any(looks_secret(str(key)) for key in path) or path[:1] == ("tokens",):
        return f"set {name} in the environment, or in a file that environment_vars.include names"
    return f"set {name}, or give a default: ${{{name}:-value}}"


def _is_for_a_plugin(path: KeyPath) -> bool:
    match path:
        case ("plugins", _, "config" | "env", *_):
            return True
        case _:
            return False
