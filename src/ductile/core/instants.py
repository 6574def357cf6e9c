"""Instants as people write them: `2h`, `yesterday`, `monday 09:00`, `10:30`, `2026-11-18`, RFC 3339."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from ductile.core.durations import QuantityError, parse_duration

INSTANT_EXPECTED = (
    "a time such as 2h (ago), today, yesterday, monday, 10:30, 2026-11-18, 2026-11-18 10:30 or"
    " 2026-11-18T10:30:00Z"
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS_FROM_TODAY = {"yesterday": -1, "today": 0, "tomorrow": 1}
_SHORTEST_NAME = 3
_CLOCK = re.compile(r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DAY = timedelta(days=1)
_MIDNIGHT = time()


class InstantError(ValueError):
    """The text is not an instant; `expected` describes a valid one."""

    def __init__(self, message: str, *, expected: str = INSTANT_EXPECTED) -> None:
        super().__init__(message)
        self.expected = expected


def parse_instant(text: str, *, now: datetime, zone: tzinfo) -> datetime:
    """Return the instant in UTC. Raises InstantError.

    A duration is before now, or after it with `in`. A day means its first moment, a weekday the latest one up
    to today, a time of day the latest one up to now. Days and times are those of the zone; a time that clocks
    skip means the same time by the clock before the change; a time that occurs twice means the first one.
    """
    words = text.strip()
    try:
        instant = (
            _parse_exact(words, zone)
            or _parse_offset(words.lower(), now)
            or _parse_day_and_time(words.lower(), now, zone)
        )
    except OverflowError:
        raise InstantError(f"{text!r} is outside of the calendar") from None
    if instant is None:
        raise InstantError(f"{text!r} is not a time")
    return instant


def _parse_exact(text: str, zone: tzinfo) -> datetime | None:
    """Parse an RFC 3339 instant, or one without its offset, which is a time in the zone. None if neither."""
    if not _DATE.match(text) or _DATE.fullmatch(text):
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=zone)).astimezone(UTC)


def _parse_offset(text: str, now: datetime) -> datetime | None:
    """Parse `now`, `2h`, `2h ago` or `in 2h`. None for other texts."""
    if text == "now":
        return now.astimezone(UTC)
    sign = 1 if text.startswith("in ") else -1
    try:
        span = parse_duration(text.removeprefix("in ").removesuffix(" ago").replace(" ", ""))
    except QuantityError:
        return None
    return (now + sign * span).astimezone(UTC)


def _parse_day_and_time(text: str, now: datetime, zone: tzinfo) -> datetime | None:
    """Parse a day, a time of day, or a day and a time. None for other texts."""
    today = now.astimezone(zone).date()
    first, _, second = text.partition(" ")
    day = _parse_day(first, today)
    if day is not None:
        clock = _parse_clock(second.removeprefix("at ").strip()) if second else _MIDNIGHT
        return None if clock is None else _local(day, clock, zone)
    clock = None if second else _parse_clock(first)
    if clock is None:
        return None
    instant = _local(today, clock, zone)
    return instant if instant <= now else _local(today - _DAY, clock, zone)


def _parse_day(word: str, today: date) -> date | None:
    """Parse `today` and the like, a weekday or its beginning, or a date. None for other texts."""
    if word in _DAYS_FROM_TODAY:
        return today + _DAYS_FROM_TODAY[word] * _DAY
    if len(word) >= _SHORTEST_NAME:
        for number, name in enumerate(_WEEKDAYS):
            if name.startswith(word):
                return today - (today.weekday() - number) % 7 * _DAY
    if _DATE.fullmatch(word):
        try:
            return date.fromisoformat(word)
        except ValueError:
            return None
    return None


def _parse_clock(text: str) -> time | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    try:
        return time(hour, minute, second)
    except ValueError:
        return None


def _local(day: date, clock: time, zone: tzinfo) -> datetime:
    return datetime.combine(day, clock, tzinfo=zone).astimezone(UTC)


_STEPS = ((timedelta(days=1), "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min"))


def format_relative(instant: datetime, now: datetime) -> str:
    """Return the distance from now in one unit, rounded down: `3 min ago`, `in 2 h`, `now`."""
    span = abs(now - instant)
    text = f"{span // timedelta(seconds=1)} s"
    for size, unit in _STEPS:
        if span >= size:
            text = f"{span // size} {unit}"
            break
    if text == "0 s":
        return "now"
    return f"{text} ago" if instant < now else f"in {text}"
