"""References that lack their quotes: `{payload.x}` without them is a map with one key and no value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.keypath import KeyPath, problem_at
from ductile.config.merge import is_empty
from ductile.core.references import Root
from ductile.protocol.yaml12 import ListNode, MapNode, Node, ScalarNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.errors import Problem

_ROOTS = tuple(f"{root}." for root in Root)


def find_unquoted(root: MapNode) -> tuple[Problem, ...]:
    """A problem for each such map in the pipelines."""
    pipelines = root.get("pipelines")
    found = () if pipelines is None else _find(pipelines, ("pipelines",))
    return tuple(
        problem_at(
            node.place,
            path,
            "without quotes this is a YAML map, not a reference",
            hint=f'quote it: "{{{name}}}"',
        )
        for path, node, name in found
    )


def _find(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node, str]]:
    match node:
        case MapNode(entries=((ScalarNode(text=name, plain=True), value),)) if is_empty(value) and (
            name.startswith(_ROOTS)
        ):
            yield path, node, name
        case MapNode(entries=entries):
            for key, value in entries:
                yield from _find(value, (*path, key.text))
        case ListNode(items=items):
            for index, item in enumerate(items):
                yield from _find(item, (*path, index))
        case _:
            return
