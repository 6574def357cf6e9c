"""How a YAML file is indented, so that what is written into it looks like the rest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ductile.protocol.yaml import ListNode, MapNode
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.protocol.yaml import Node


class Indentation(Value):
    """Columns from a key to the keys below it, and from a key to the dashes below it."""

    keys: int = 2
    dashes: int = 0


def measure_indentation(root: Node | None) -> Indentation:
    """What the file does most often; the usual where it does neither."""
    steps = list(_steps(root))
    keys = Counter(columns for kind, columns in steps if kind is MapNode)
    dashes = Counter(columns for kind, columns in steps if kind is ListNode)
    return Indentation(
        keys=keys.most_common(1)[0][0] if keys else 2,
        dashes=dashes.most_common(1)[0][0] if dashes else 0,
    )


def _steps(node: Node | None) -> Iterator[tuple[type[MapNode | ListNode], int]]:
    match node:
        case MapNode(entries=entries):
            for key, value in entries:
                # What begins on the line of its key is written in braces or brackets.
                if isinstance(value, MapNode | ListNode) and value.place.line > key.place.line:
                    yield type(value), value.place.column - key.place.column
                yield from _steps(value)
        case ListNode(items=items):
            for item in items:
                yield from _steps(item)
        case _:
            return
