"""Parses a scalar of each setting type. Pure: `decode` adds keys and locations to the errors.

A message never contains a value that came from a variable or may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from math import inf

from ductile.config.read.interpolate import without_defaults
from ductile.config.schema.fields import SettingType, Weekday
from ductile.config.secrets import Secret
from ductile.core.durations import (
    DURATION_EXPECTED,
    MAX_DURATION,
    SIZE_EXPECTED,
    QuantityError,
    parse_duration,
    parse_interval,
    parse_size,
)
from ductile.core.schedules.rule import DailyWindow
from ductile.errors import ConfigError
from ductile.protocol.yaml_tree import MapNode, Node, ScalarNode, scalar_value

_TIME_OF_DAY = re.compile(r"(?P<hour>[01]?[0-9]|2[0-4]):(?P<minute>[0-5][0-9])", re.ASCII)
#: RFC 3339.
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_MAX_QUOTE = 60


@dataclass(eq=False)
class InvalidValueError(Exception):
    """The value is not of its type; `message` and `hint` add to what was expected."""

    expected: str
    message: str | None = None
    hint: str | None = None


def describe(node: Node) -> str:
    """Return a few words for a node, to follow "found". A variable's value is described by its reference."""
    if not isinstance(node, ScalarNode):
        return "a map" if isinstance(node, MapNode) else "a list"
    text = node.text if node.written is None else without_defaults(node.written)
    if node.written is None:
        try:
            value = scalar_value(node)
        except ConfigError:  # a number that cannot be used
            return text[:_MAX_QUOTE]
        if not isinstance(value, str):
            return "nothing" if value is None else text[:_MAX_QUOTE]
    return f'"{text}"' if len(text) <= _MAX_QUOTE else f'"{text[:_MAX_QUOTE]}…"'


def parse_scalar(node: Node, setting_type: SettingType, at_least: int | None = None) -> object:
    """Return the value of a setting. Raises InvalidValueError.

    `at_least` bounds a number, and requires a duration or size to be greater than zero.
    """
    expected, parse = _PARSERS[setting_type]
    if setting_type is SettingType.WHOLE_NUMBER and at_least is not None:
        expected = f"a whole number, {at_least} or more"
    if not isinstance(node, ScalarNode):
        raise InvalidValueError(expected)
    try:
        value = parse(node)
    except QuantityError as error:
        # The parser's message quotes the text, which must not be shown if it came from a variable.
        message = str(error) if node.written is None and node.text else None
        raise InvalidValueError(error.expected, message=message) from None
    except ValueError:
        hint = "put it in quotes if it is meant as text" if setting_type is SettingType.TEXT else None
        raise InvalidValueError(expected, hint=hint) from None
    if at_least is None or not isinstance(value, int | timedelta):
        return value
    if setting_type is SettingType.WHOLE_NUMBER and isinstance(value, int):
        if value < at_least:
            raise InvalidValueError(expected)
        return value
    if not value:
        raise InvalidValueError(expected, message="it must be greater than zero")
    return value


def _text(node: ScalarNode) -> str:
    """Return the text. A number from a variable is text too: a variable has no type."""
    value = scalar_value(node)
    if isinstance(value, str):
        return value
    if node.written is None or value is None:
        raise ValueError
    return node.text


def _whole_number(node: ScalarNode) -> int:
    value = scalar_value(node)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError


def _number(node: ScalarNode) -> float:
    value = scalar_value(node)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf:
        return float(value)
    raise ValueError


def _boolean(node: ScalarNode) -> bool:
    value = scalar_value(node)
    if isinstance(value, bool):
        return value
    is_yaml_1_1_word = isinstance(value, str) and value.lower() in {"yes", "no", "on", "off"}
    hint = "write true or false; YAML 1.2 reads this word as text" if is_yaml_1_1_word else None
    raise InvalidValueError("true or false", hint=hint)


def _secret(node: ScalarNode) -> Secret:
    if not node.text.strip():
        hint = "set the variable it comes from"
        raise InvalidValueError("a secret", message="the secret is empty", hint=hint)
    try:
        node.text.encode()
    except UnicodeEncodeError:
        hint = "write binary data as base64 or in hexadecimal digits"
        raise InvalidValueError("text", message="the secret is not UTF-8 text", hint=hint) from None
    return Secret(node.text)


def _instant(node: ScalarNode) -> datetime:
    if not _INSTANT.fullmatch(node.text):
        raise ValueError
    instant = datetime.fromisoformat(node.text)
    try:
        # The calendar must leave room for jitter and for another zone's offset.
        for margin in (MAX_DURATION, -MAX_DURATION):
            instant.astimezone(UTC) + margin
    except OverflowError:
        raise ValueError from None
    return instant


def _time_of_day(text: str) -> time:
    match = _TIME_OF_DAY.fullmatch(text.strip())
    if match is None or (match["hour"] == "24" and match["minute"] != "00"):
        raise ValueError
    return time(int(match["hour"]) % 24, int(match["minute"]))


def _hours(node: ScalarNode) -> DailyWindow:
    start, _, end = node.text.partition("-")
    hours = DailyWindow(start=_time_of_day(start), end=_time_of_day(end))
    if hours.start == hours.end:
        raise InvalidValueError(_PARSERS[SettingType.WINDOW][0], message="start and end are the same")
    return hours


def _weekday(node: ScalarNode) -> Weekday:
    text = node.text.strip().upper()
    if re.fullmatch("[0-6]", text, re.ASCII):
        return Weekday(int(text))
    for day in Weekday:
        if text in {day.name, day.name[:3]}:
            return day
    raise ValueError


#: What is expected, and the parser of a scalar, which raises ValueError. `decode` reads the other types.
_PARSERS: Mapping[SettingType, tuple[str, Callable[[ScalarNode], object]]] = {
    SettingType.TEXT: ("text", _text),
    SettingType.WHOLE_NUMBER: ("a whole number", _whole_number),
    SettingType.NUMBER: ("a number, 0 or more", _number),
    SettingType.BOOLEAN: ("true or false", _boolean),
    SettingType.DURATION: (DURATION_EXPECTED, lambda node: parse_duration(node.text)),
    SettingType.INTERVAL: (DURATION_EXPECTED, lambda node: parse_interval(node.text)),
    SettingType.SIZE: (SIZE_EXPECTED, lambda node: parse_size(node.text)),
    SettingType.SECRET: ("text", _secret),
    SettingType.INSTANT: ("an instant with its offset, such as 2026-12-24T18:00:00+01:00", _instant),
    SettingType.TIME_OF_DAY: ("a time of day such as 08:30", lambda node: _time_of_day(node.text)),
    SettingType.WINDOW: ("hours of the day such as 08:00-22:00", _hours),
    SettingType.WEEKDAY: ("a weekday such as sunday or sun, or 0 to 6 from Sunday", _weekday),
    # The validation rules check the form; here a bare number is a port, not text that lacks its quotes.
    SettingType.ADDRESS: ("host:port, such as localhost:8080", _text),
}
