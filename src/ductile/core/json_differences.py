"""Compare two JSON values and list the differences, except at ignored paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ductile.core.expressions.operators import json_equal
from ductile.core.expressions.paths import MISSING, Missing
from ductile.core.json import JsonValue
from ductile.struct import Value

Path: TypeAlias = tuple[str, ...]
#: In a pattern: any one key or position.
ANY = "*"


class ValueDifference(Value):
    """The values at one path; MISSING where there is none."""

    path: Path
    before: JsonValue | Missing
    now: JsonValue | Missing

    @property
    def name(self) -> str:
        return ".".join(self.path)


def parse_pattern(text: str) -> Path | None:
    """Return the pattern `events.*.payload.at` as a path; None if a part of it is empty."""
    parts = tuple(text.strip().split("."))
    return parts if all(parts) else None


def compare_values(
    before: JsonValue, now: JsonValue, ignore: Sequence[Path] = ()
) -> tuple[ValueDifference, ...]:
    """Return the outermost differences, in the order of the values. Items of lists are compared by position.

    A pattern of `ignore` excludes the value at its path and everything below it.
    """
    return tuple(_compare(before, now, (), ignore))


def _compare(
    before: JsonValue | Missing, now: JsonValue | Missing, path: Path, ignore: Sequence[Path]
) -> Iterator[ValueDifference]:
    for pattern in ignore:
        if len(pattern) == len(path) and all(
            part in (ANY, key) for part, key in zip(pattern, path, strict=True)
        ):
            return
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*before, *now)):
            yield from _compare(before.get(key, MISSING), now.get(key, MISSING), (*path, key), ignore)
    elif isinstance(before, list) and isinstance(now, list):
        for index in range(max(len(before), len(now))):
            old = before[index] if index < len(before) else MISSING
            new = now[index] if index < len(now) else MISSING
            yield from _compare(old, new, (*path, str(index)), ignore)
    elif before is MISSING or now is MISSING or not json_equal(before, now):
        yield ValueDifference(path=path, before=before, now=now)
