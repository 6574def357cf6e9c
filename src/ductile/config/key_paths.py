"""The path of a key through the configuration, and problems that are told by it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from ductile.errors import Problem
from ductile.protocol.yaml import ListNode, MapNode, Node, SourceLocation

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_COMPARED = 1000

KeyPath: TypeAlias = tuple[str | int, ...]


def format_path(path: KeyPath) -> str:
    """`("plugins", "echo", "schedules", 0)` as `plugins.echo.schedules[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def problem_at(
    place: SourceLocation | None,
    path: KeyPath,
    message: str,
    *,
    expected: str | None = None,
    found: str | None = None,
    hint: str | None = None,
) -> Problem:
    return Problem(
        message=message,
        file=place.file if place else None,
        line=place.line if place else None,
        column=place.column if place else None,
        key=format_path(path) or None,
        expected=expected,
        found=found,
        hint=hint,
    )


def place_of(root: Node | None, path: KeyPath) -> SourceLocation | None:
    """Where a key is written; for a missing key, the nearest thing around it."""
    place = root.place if root is not None else None
    for part in path:
        match root, part:
            case MapNode(), str():
                entry = root.entry(part)
                if entry is None:
                    return place
                place, root = entry[0].place, entry[1]
            case ListNode(items=items), int() if part < len(items):
                root = items[part]
                place = root.place
            case _:
                return place
    return place


def node_at(root: Node, path: KeyPath) -> Node | None:
    """What is written at a path, None if nothing is."""
    found: Node | None = root
    for part in path:
        match found, part:
            case MapNode(), str():
                found = found.get(part)
            case ListNode(items=items), int() if part < len(items):
                found = items[part]
            case _:
                return None
    return found


#: How alike two words have to be for one to be meant. At 0.6 `echo` would be meant by `fetch`.
NEAR = 0.7


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint at the nearest known word, if one is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - 5 ms that only an error has to pay

    # Comparing is slow. The ratio of two words is at most this, by their lengths alone.
    size = len(word)
    candidates = (name for name in known if 2 * min(len(name), size) >= NEAR * (len(name) + size))
    near = get_close_matches(word, islice(candidates, _MOST_COMPARED), n=1, cutoff=NEAR)
    return f"did you mean {near[0]}?" if near else None
