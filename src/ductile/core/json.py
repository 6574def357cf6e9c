"""The type of decoded JSON, and the limits on its depth and size."""

from __future__ import annotations

import json
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]


#: The deepest nesting of stored JSON: decoders have different limits.
MAX_DEPTH = 256
#: A tuple, which `isinstance` checks faster than a union.
_NESTING = (dict, list)


def nests_too_deep(value: JsonValue) -> bool:
    """Return whether a value nests deeper than MAX_DEPTH. Iterative, so that no depth exhausts the stack."""
    level = [value] if isinstance(value, _NESTING) else []
    for _ in range(MAX_DEPTH + 1):
        deeper: list[JsonObject | list[JsonValue]] = []
        for outer in level:
            for inner in outer.values() if isinstance(outer, dict) else outer:
                if isinstance(inner, _NESTING):
                    deeper.append(inner)  # noqa: PERF401 - twice as fast as a comprehension for few values
        if not deeper:
            return False
        level = deeper
    return True


def encoded_size(value: JsonValue) -> int:
    """Return the size as compact UTF-8 JSON, in which all size limits are counted."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
