"""The operators of conditions: JSON values compared without coercion."""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from ductile.core.expressions.paths import MISSING, Missing
from ductile.core.expressions.regex import matches
from ductile.core.json import JsonValue


def json_equal(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values are equal at every depth: `true` is not 1, and 1 is 1.0.

    Python's own equality of lists and dicts cannot be used, because `True == 1`.
    """
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case list(), list():
            return len(one) == len(other) and all(map(json_equal, one, other))
        case dict(), dict():
            return one.keys() == other.keys() and all(
                json_equal(inner, other[key]) for key, inner in one.items()
            )
        case _:
            return one == other


class Operator(StrEnum):
    EXISTS = "exists"
    EQ = "eq"
    NEQ = "neq"
    IN = "in"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    CONTAINS = "contains"
    STARTSWITH = "startswith"
    ENDSWITH = "endswith"
    REGEX = "regex"


_ORDER: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.GT: operator.gt,
    Operator.GTE: operator.ge,
    Operator.LT: operator.lt,
    Operator.LTE: operator.le,
}


def compare(
    found: JsonValue | Missing, op: Operator, value: JsonValue, match: Callable[[str, str], bool] = matches
) -> bool:
    """Return whether the comparison holds.

    A missing value equals null and makes other operators false. So does a value of a type that the operator
    does not support: payloads come from outside, and an error would fail the step. `match` decides whether a
    regular expression matches a text. Raises PatternError if a regular expression cannot be used.
    """
    or_null = None if found is MISSING else found
    match op:
        case Operator.EXISTS:
            return (found is not MISSING) is value
        case Operator.EQ:
            return json_equal(or_null, value)
        case Operator.NEQ:
            return not json_equal(or_null, value)
        case Operator.IN:
            return isinstance(value, list) and any(json_equal(or_null, entry) for entry in value)
        case _ if found is MISSING:
            return False
        case Operator.GT | Operator.GTE | Operator.LT | Operator.LTE:
            return _are_ordered(found, value) and _ORDER[op](found, value)
        case Operator.CONTAINS:
            return _contains(found, value)
        case Operator.STARTSWITH | Operator.ENDSWITH | Operator.REGEX:
            return isinstance(found, str) and isinstance(value, str) and _match_text(found, op, value, match)


def _match_text(found: str, op: Operator, value: str, match: Callable[[str, str], bool]) -> bool:
    if op is Operator.REGEX:
        return match(value, found)
    text, part = found.casefold(), value.casefold()
    return text.startswith(part) if op is Operator.STARTSWITH else text.endswith(part)


def _are_ordered(one: JsonValue, other: JsonValue) -> bool:
    """Return whether the values are two numbers or two texts, which are ordered by characters."""
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    return (isinstance(one, int | float) and isinstance(other, int | float)) or (
        isinstance(one, str) and isinstance(other, str)
    )


def _contains(found: JsonValue, value: JsonValue) -> bool:
    """Find a text in a text without regard to case, an element in a list, a key in an object."""
    match found, value:
        case str(), str():
            return value.casefold() in found.casefold()
        case list(), _:
            return any(json_equal(entry, value) for entry in found)
        case dict(), str():
            return value in found
        case _:
            return False
