"""Durations and sizes as they are written in configurations: `1h30m`, `daily`, `64KB`.

Parsing is strict: a number without a unit, a fraction or a unit out of order is refused with a message that
shows what to write, because `timeout: 5` could mean minutes or seconds.
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

DURATION_EXPECTED = "a duration such as 500ms, 30s, 5m, 1h30m, 2d, 1w or daily"
SIZE_EXPECTED = "a size such as 64KB, 1MB or 1GiB, or a number of bytes"

#: Largest first: the order in which the parts of a duration are written.
_UNITS: dict[str, timedelta] = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d{{1,15}}){unit})?" for unit in _UNITS), re.ASCII)
_WORDS = {
    "hourly": timedelta(hours=1),
    "daily": timedelta(days=1),
    "weekly": timedelta(weeks=1),
    "monthly": timedelta(days=30),
}
#: A century: instants this far ahead are representable.
MAX_DURATION = timedelta(days=36_500)

_SIZE = re.compile(r"(?P<number>\d{1,15})(?P<unit>[A-Za-z]*)", re.ASCII)
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}


class QuantityError(ValueError):
    """The text is not a duration or a size; `expected` describes a valid one."""

    def __init__(self, message: str, *, expected: str) -> None:
        super().__init__(message)
        self.expected = expected


class CalendarStep(StrEnum):
    """An interval in the calendar of a time zone: its length in hours varies."""

    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"


Interval: TypeAlias = timedelta | CalendarStep


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Calendar words have their usual length, a month 30 days. Raises QuantityError."""
    if text in _WORDS:
        return _WORDS[text]
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise QuantityError(_duration_fault(text), expected=DURATION_EXPECTED)
    try:
        total = sum((int(count) * _UNITS[unit] for unit, count in match.groupdict("0").items()), timedelta())
    except OverflowError:
        total = timedelta.max
    if total > MAX_DURATION:
        raise QuantityError("this is longer than a hundred years", expected=DURATION_EXPECTED)
    return total


def parse_interval(text: str) -> Interval:
    """Parse the interval of a schedule; `daily` and longer follow the calendar. Raises QuantityError."""
    if text in set(CalendarStep):
        return CalendarStep(text)
    return parse_duration(text)


def format_duration(span: timedelta) -> str:
    """Return a duration as `parse_duration` reads it, to the millisecond."""
    milliseconds = max(round(span / _UNITS["ms"]), 0)
    if milliseconds and milliseconds % (_UNITS["w"] // _UNITS["ms"]) == 0:
        return f"{milliseconds // (_UNITS['w'] // _UNITS['ms'])}w"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, _UNITS[unit] // _UNITS["ms"])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Parse a size in bytes: KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024. Raises QuantityError."""
    match = _SIZE.fullmatch(text)
    if match is None or match["unit"].lower() not in _BYTES:
        raise QuantityError(f'"{text}" is not a size', expected=SIZE_EXPECTED)
    return int(match["number"]) * _BYTES[match["unit"].lower()]


def format_size(count: int) -> str:
    """Return a size in the largest unit that represents it exactly."""
    exact = [(size, unit) for unit, size in _BYTES.items() if size > 1 and count and count % size == 0]
    if not exact:
        return str(count)
    size, unit = max(exact)
    return f"{count // size}{unit.upper().replace('I', 'i')}"


def _duration_fault(text: str) -> str:
    if re.fullmatch(r"\d+", text, re.ASCII):
        return f'"{text}" has no unit; is it {text}s or {text}m?'
    if re.search(r"\d[.,]\d", text, re.ASCII):
        return f'"{text}" has a fraction; use a smaller unit, such as 90m for one and a half hours'
    if re.fullmatch(r"(\d+[a-z]+)+", text, re.ASCII):
        return f'"{text}" is not a duration; each unit of w, d, h, m, s, ms once, the largest first'
    return f'"{text}" is not a duration'
