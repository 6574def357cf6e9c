"""The operators of conditions: JSON values compared without coercion."""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from ductile.core.expressions.paths import MISSING, Missing
from ductile.core.expressions.regex import matches
from ductile.core.json import JsonValue


def json_equal(value: JsonValue, other: JsonValue) -> bool:
    """Return whether two values are equal at every depth: `true` is not 1, and 1 is 1.0.

    Python's own equality of lists and dicts cannot be used, because `True == 1`.
    """
    match value, other:
        case (bool(), _) | (_, bool()):
            return value is other
        case list(), list():
            return len(value) == len(other) and all(map(json_equal, value, other))
        case dict(), dict():
            return value.keys() == other.keys() and all(
                json_equal(inner, other[key]) for key, inner in value.items()
            )
        case _:
            return value == other


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
    actual: JsonValue | Missing, op: Operator, value: JsonValue, match: Callable[[str, str], bool] = matches
) -> bool:
    """Return whether the comparison holds.

    A missing value equals null and makes other operators false. So does a value of a type that the operator
    does not support: payloads come from outside, and an error would fail the step. `match` decides whether a
    regular expression matches a text. Raises PatternError if a regular expression cannot be used.
    """
    actual_or_null = None if actual is MISSING else actual
    match op:
        case Operator.EXISTS:
            return (actual is not MISSING) is value
        case Operator.EQ:
            return json_equal(actual_or_null, value)
        case Operator.NEQ:
            return not json_equal(actual_or_null, value)
        case Operator.IN:
            return isinstance(value, list) and any(json_equal(actual_or_null, entry) for entry in value)
        case _ if actual is MISSING:
            return False
        case Operator.GT | Operator.GTE | Operator.LT | Operator.LTE:
            return _are_ordered(actual, value) and _ORDER[op](actual, value)
        case Operator.CONTAINS:
            return _contains(actual, value)
        case Operator.STARTSWITH | Operator.ENDSWITH | Operator.REGEX:
            return (
                isinstance(actual, str) and isinstance(value, str) and _match_text(actual, op, value, match)
            )


def _match_text(actual: str, op: Operator, value: str, match: Callable[[str, str], bool]) -> bool:
    if op is Operator.REGEX:
        return match(value, actual)
    text, part = actual.casefold(), value.casefold()
    return text.startswith(part) if op is Operator.STARTSWITH else text.endswith(part)


def _are_ordered(value: JsonValue, other: JsonValue) -> bool:
    """Return whether the values are two numbers or two texts, which are ordered by characters."""
    if isinstance(value, bool) or isinstance(other, bool):
        return False
    return (isinstance(value, int | float) and isinstance(other, int | float)) or (
        isinstance(value, str) and isinstance(other, str)
    )


def _contains(actual: JsonValue, value: JsonValue) -> bool:
    """Return whether a text contains a text (in any case), a list an element, or an object a key."""
    match actual, value:
        case str(), str():
            return value.casefold() in actual.casefold()
        case list(), _:
            return any(json_equal(entry, value) for entry in actual)
        case dict(), str():
            return value in actual
        case _:
            return False
