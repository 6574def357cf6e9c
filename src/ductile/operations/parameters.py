"""Reading what a caller sent: each value by its name, with an error that names it.

A value of the wrong type was read and is refused: only a body can hold one, for a query and a command line
are text. A text that cannot be understood makes no sense (422 and 400).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from ductile.core.durations import QuantityError, parse_duration
from ductile.core.json import JsonObject
from ductile.errors import RefusedError, UsageError

Word = TypeVar("Word", bound=StrEnum)

#: A day, which begins at midnight UTC as all instants here are in UTC.
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
#: The blank before an offset whose + was taken for one, as it is in addresses.
_LOST_PLUS = re.compile(r"(?<=\d) (?=\d\d:?\d\d$)", re.ASCII)


def refused(name: str, message: str, hint: str | None = None) -> RefusedError:
    return RefusedError(message, hint=hint, details={"field": name})


def _unusable(name: str, message: str, hint: str | None = None) -> UsageError:
    return UsageError(message, hint=hint, details={"field": name})


def text(given: JsonObject, name: str) -> str:
    value = optional_text(given, name)
    if value is None:
        raise refused(name, f"{name} is missing")
    return value


def optional_text(given: JsonObject, name: str) -> str | None:
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value
    raise refused(name, f"{name} has to be text")


def number(given: JsonObject, name: str, default: int, *, least: int = 1, most: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _unusable(name, f"{name} has to be a whole number from {least} to {most}")
    return value


def flag(given: JsonObject, name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise refused(name, f"{name} has to be true or false")
    return value


def optional_object(given: JsonObject, name: str) -> JsonObject | None:
    value = given.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise refused(name, f"{name} has to be a JSON object")


def optional_duration(given: JsonObject, name: str) -> timedelta | None:
    value = optional_text(given, name)
    if value is None:
        return None
    try:
        return parse_duration(value)
    except QuantityError as error:
        raise _unusable(name, f"{name}: {error}", f"expected {error.expected}") from None


def optional_instant(given: JsonObject, name: str) -> datetime | None:
    value = optional_text(given, name)
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(f"{value}T00:00Z" if _DATE.fullmatch(value) else value)
        if instant.tzinfo is not None:
            return instant.astimezone(UTC)  # which the first and the last day of the calendar may not have
    except (ValueError, OverflowError):
        pass
    hint = "write it as 2026-02-08T10:00:00Z, or as a date"
    if _LOST_PLUS.search(value):
        hint = f"in an address a + is written %2B: {_LOST_PLUS.sub('%2B', value)}"
    raise _unusable(name, f"{name}: {value[:100]!r} is not a time", hint)


def optional_word(
    given: JsonObject, name: str, words: type[Word], aliases: dict[str, Word] | None = None
) -> Word | None:
    value = optional_text(given, name)
    if value is None:
        return None
    if aliases and value in aliases:
        return aliases[value]
    return _word(value, name, words, aliases)


def words(given: JsonObject, name: str, known: type[Word]) -> frozenset[Word]:
    """Several, with commas in between."""
    listed = (each.strip() for each in (optional_text(given, name) or "").split(","))
    return frozenset(_word(each, name, known) for each in listed if each)


def _word(value: str, name: str, words: type[Word], aliases: dict[str, Word] | None = None) -> Word:
    try:
        return words(value)
    except ValueError:
        known = ", ".join([*words, *(aliases or {})])
        raise _unusable(name, f"{name}: unknown value {value[:100]!r}", f"one of {known}") from None
