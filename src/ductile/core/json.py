"""The type of decoded JSON, and the one measure of how large a JSON value is."""

from __future__ import annotations

import json
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]


#: As deep as JSON may nest where we keep it: what a decoder reads on one stack it may not read on another.
MAX_DEPTH = 256
#: A tuple: a union would be made anew, and asked more slowly, for every value of every payload.
_NESTING = (dict, list)


def nests_too_deep(value: JsonValue) -> bool:
    """Whether a value nests deeper than is kept. Level by level, so that no depth can exhaust a stack."""
    level = [value] if isinstance(value, _NESTING) else []
    for _ in range(MAX_DEPTH + 1):
        deeper: list[JsonObject | list[JsonValue]] = []
        for outer in level:
            for inner in outer.values() if isinstance(outer, dict) else outer:
                if isinstance(inner, _NESTING):
                    deeper.append(inner)  # noqa: PERF401 - half the price of a comprehension for few values
        if not deeper:
            return False
        level = deeper
    return True


def encoded_size(value: JsonValue) -> int:
    """Bytes of the value as compact UTF-8 JSON: what every size limit on JSON is counted in."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
