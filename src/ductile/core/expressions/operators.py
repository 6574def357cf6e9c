"""The operators of conditions: JSON values compared without coercion."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

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


def compare(
    found: JsonValue | Missing,
    op: Operator,
    value: JsonValue,
    match: Callable[[str, str], bool] = matches,
) -> bool:
    """Return whether the comparison holds.

    A missing value equals null and makes other operators false. So does a value of a type that the operator
    does not support: payloads come from outside, and an error would fail the step. `match` decides whether a
    regular expression matches a text. Raises PatternError if a regular expression cannot be used.
    """
    match op:
        case Operator.EXISTS:
            return (found is not MISSING) is value
        case Operator.EQ:
            return json_equal(_or_null(found), value)
        case Operator.NEQ:
            return not json_equal(_or_null(found), value)
        case Operator.IN:
            return isinstance(value, list) and any(json_equal(_or_null(found), entry) for entry in value)
        case _ if found is MISSING:
            return False
        case Operator.GT | Operator.GTE | Operator.LT | Operator.LTE:
            return _in_order(found, op, value)
        case Operator.CONTAINS:
            return _contains(found, value)
        case Operator.STARTSWITH | Operator.ENDSWITH | Operator.REGEX:
            return isinstance(found, str) and isinstance(value, str) and _fits(found, op, value, match)


def _or_null(found: JsonValue | Missing) -> JsonValue:
    return None if found is MISSING else found


def _in_order(found: JsonValue, op: Operator, value: JsonValue) -> bool:
    order = _order(found, value)
    if order is None:
        return False
    match op:
        case Operator.GT:
            return order > 0
        case Operator.GTE:
            return order >= 0
        case Operator.LT:
            return order < 0
        case _:
            return order <= 0


def _order(found: JsonValue, value: JsonValue) -> int | None:
    """Return -1, 0 or 1 for two numbers or two texts, which are compared by characters; else None."""
    match found, value:
        case (bool(), _) | (_, bool()):
            return None
        case ((int() | float() as one), (int() | float() as other)):
            return (one > other) - (one < other)
        case str(), str():
            return (found > value) - (found < value)
        case _:
            return None


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


def _fits(found: str, op: Operator, value: str, match: Callable[[str, str], bool]) -> bool:
    match op:
        case Operator.STARTSWITH:
            return found.casefold().startswith(value.casefold())
        case Operator.ENDSWITH:
            return found.casefold().endswith(value.casefold())
        case _:
            return match(value, found)
