"""How each kind of setting is read from a node: the value, or what was expected instead.

Pure. Nothing here knows keys or files; `decode` adds those. What is said about a value that came
from a variable, or may be a secret, never contains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import TypeVar

from ductile.config.read.interpolate import without_defaults
from ductile.config.schema.types import SettingType, Weekday
from ductile.config.secrets import Secret
from ductile.core.durations import (
    DURATION_EXPECTED,
    LONGEST_DURATION,
    SIZE_EXPECTED,
    QuantityError,
    parse_duration,
    parse_interval,
    parse_size,
)
from ductile.core.schedules.windows import DailyWindow
from ductile.protocol.yaml import ListNode, MapNode, Node, ScalarNode, scalar_value

_CLOCK = re.compile(r"(?P<hour>[01]?[0-9]|2[0-4]):(?P<minute>[0-5][0-9])", re.ASCII)
_INSTANT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)  # RFC 3339
_LONGEST_QUOTE = 60

Quantity = TypeVar("Quantity")


class InvalidValueError(Exception):
    """The value is not of the kind; `message` adds what the words "expected" and "found" do not say."""

    def __init__(self, expected: str, *, message: str | None = None, hint: str | None = None) -> None:
        super().__init__(message or f"expected {expected}")
        self.expected = expected
        self.message = message
        self.hint = hint


def describe(node: Node) -> str:
    """A node in words, for "found". What came from a variable is told by the variable's name."""
    match node:
        case MapNode():
            return "a map"
        case ListNode():
            return "a list"
        case ScalarNode(written=str() as written):
            return _quoted(without_defaults(written))
        case ScalarNode():
            return _describe_scalar(node)


def _describe_scalar(node: ScalarNode) -> str:
    match scalar_value(node):
        case None:
            return "nothing"
        case bool() | int() | float():
            return node.text[:_LONGEST_QUOTE]
        case text:
            return _quoted(text)


def _quoted(text: str) -> str:
    shown = text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"
    return f'"{shown}"'


def _scalar(node: Node, expected: str) -> ScalarNode:
    if not isinstance(node, ScalarNode):
        raise InvalidValueError(expected)
    return node


def read_text(node: Node, at_least: int | None = None) -> str:
    """Text. A number from a variable is text too: who wrote the reference could not know its type."""
    del at_least
    scalar = _scalar(node, "text")
    value = scalar_value(scalar)
    if isinstance(value, str):
        return value
    if scalar.written is not None and value is not None:
        return scalar.text
    raise InvalidValueError("text", hint="put it in quotes if it is meant as text")


def _read_number(node: Node, at_least: int | None) -> int:
    expected = "a whole number" if at_least is None else f"a whole number, {at_least} or more"
    value = scalar_value(_scalar(node, expected))
    if isinstance(value, bool) or not isinstance(value, int) or (at_least is not None and value < at_least):
        raise InvalidValueError(expected)
    return value


def _read_truth(node: Node, at_least: int | None) -> bool:
    del at_least
    value = scalar_value(_scalar(node, "true or false"))
    if not isinstance(value, bool):
        wordy = isinstance(value, str) and value.lower() in {"yes", "no", "on", "off"}
        hint = "write true or false; YAML 1.2 reads this word as text" if wordy else None
        raise InvalidValueError("true or false", hint=hint)
    return value


def _read_duration(node: Node, at_least: int | None) -> timedelta:
    return _more_than_nothing(_quantity(parse_duration, node, DURATION_EXPECTED), at_least, DURATION_EXPECTED)


def _read_interval(node: Node, at_least: int | None) -> object:
    interval = _quantity(parse_interval, node, DURATION_EXPECTED)
    if isinstance(interval, timedelta):
        return _more_than_nothing(interval, at_least, DURATION_EXPECTED)
    return interval


def _read_size(node: Node, at_least: int | None) -> int:
    return _more_than_nothing(_quantity(parse_size, node, SIZE_EXPECTED), at_least, SIZE_EXPECTED)


def _quantity(parse: Callable[[str], Quantity], node: Node, expected: str) -> Quantity:
    scalar = _scalar(node, expected)
    try:
        return parse(scalar.text)
    except QuantityError as error:
        # The parser's message quotes the text, which must not be shown if a variable supplied it.
        message = str(error) if scalar.written is None and scalar.text else None
        raise InvalidValueError(error.expected, message=message) from None


def _more_than_nothing(value: Quantity, at_least: int | None, expected: str) -> Quantity:
    if at_least is not None and not value:
        raise InvalidValueError(expected, message="it must be greater than zero")
    return value


def _read_secret(node: Node, at_least: int | None) -> Secret:
    del at_least
    scalar = _scalar(node, "text")
    if not scalar.text.strip():
        raise InvalidValueError(
            "a secret", message="the secret is empty", hint="set the variable it comes from"
        )
    try:
        scalar.text.encode()
    except UnicodeEncodeError:
        hint = "write bytes that are no text as base64 or in hexadecimal digits"
        raise InvalidValueError("text", message="the secret is not UTF-8 text", hint=hint) from None
    return Secret(scalar.text)


def _read_instant(node: Node, at_least: int | None) -> datetime:
    del at_least
    expected = "an instant with its offset, such as 2026-12-24T18:00:00+01:00"
    text = _scalar(node, expected).text
    if not _INSTANT.fullmatch(text):
        raise InvalidValueError(expected)
    try:
        instant = datetime.fromisoformat(text)
        # At the edge of the calendar there is no room for jitter, nor for another zone's offset.
        for room in (LONGEST_DURATION, -LONGEST_DURATION):
            instant.astimezone(UTC) + room
    except (ValueError, OverflowError):
        raise InvalidValueError(expected) from None
    return instant


def _read_clock(node: Node, at_least: int | None) -> time:
    del at_least
    expected = "a time of day such as 08:30"
    return _clock(_scalar(node, expected).text, expected)


def _clock(text: str, expected: str) -> time:
    found = _CLOCK.fullmatch(text.strip())
    if found is None or (found["hour"] == "24" and found["minute"] != "00"):
        raise InvalidValueError(expected)
    return time(int(found["hour"]) % 24, int(found["minute"]))


def _read_hours(node: Node, at_least: int | None) -> DailyWindow:
    del at_least
    expected = "hours of the day such as 08:00-22:00"
    start, dash, end = _scalar(node, expected).text.partition("-")
    if not dash:
        raise InvalidValueError(expected)
    hours = DailyWindow(start=_clock(start, expected), end=_clock(end, expected))
    if hours.start == hours.end:
        raise InvalidValueError(expected, message="start and end are the same")
    return hours


def _read_weekday(node: Node, at_least: int | None) -> Weekday:
    del at_least
    expected = "a weekday such as sunday or sun, or 0 to 6 from Sunday"
    text = _scalar(node, expected).text.strip().upper()
    if re.fullmatch("[0-6]", text, re.ASCII):
        return Weekday(int(text))
    for day in Weekday:
        if text in {day.name, day.name[:3]}:
            return day
    raise InvalidValueError(expected)


def _read_address(node: Node, at_least: int | None) -> str:
    """Text; whether it is an address is looked at with the other rules. A bare number is a port, and no text
    that lacks its quotes.
    """
    try:
        return read_text(node, at_least)
    except InvalidValueError:
        raise InvalidValueError("host:port, such as localhost:8080") from None


#: Kinds that are one scalar. The containers among the kinds are `decode`'s, for they nest.
PARSERS: Mapping[SettingType, Callable[[Node, int | None], object]] = {
    SettingType.TEXT: read_text,
    SettingType.WHOLE_NUMBER: _read_number,
    SettingType.TRUTH: _read_truth,
    SettingType.DURATION: _read_duration,
    SettingType.INTERVAL: _read_interval,
    SettingType.SIZE: _read_size,
    SettingType.SECRET: _read_secret,
    SettingType.INSTANT: _read_instant,
    SettingType.CLOCK: _read_clock,
    SettingType.WINDOW: _read_hours,
    SettingType.WEEKDAY: _read_weekday,
    SettingType.ADDRESS: _read_address,
}
