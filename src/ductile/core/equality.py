"""When two JSON values are the same: strictly by type, with one kind of number (SPEC 7.3)."""

from __future__ import annotations

from ductile.core.json_values import JsonValue


def same(one: JsonValue, other: JsonValue) -> bool:
    """Deep equality in which `true` is not 1 and 1 is 1.0, at every depth.

    Python compares integers and floats exactly, so that 2^53 + 1 is not 2^53 in either form. It also
    takes `True` for 1; that is why its own equality of lists and maps cannot be used.
    """
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case list(), list():
            return len(one) == len(other) and all(map(same, one, other))
        case dict(), dict():
            return one.keys() == other.keys() and all(same(inner, other[key]) for key, inner in one.items())
        case _:
            return one == other
