"""Daily windows and weekdays in a time zone, across clock changes.

All returned instants are in UTC: local times of one zone compare by their wall time, which is wrong when the
clocks change.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from ductile.struct import Value

_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)


class DailyWindow(Value):
    """From `start` up to, not including, `end`; an end that is not later is on the next day."""

    start: time
    end: time

    def contains(self, moment: time) -> bool:
        if self.start < self.end:
            return self.start <= moment < self.end
        return moment >= self.start or moment < self.end


def instant_of_wall_time(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when the clocks of the zone first show this time, or the end of the gap that skips it."""
    found = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None, fold=0) == wall.replace(fold=0):
        return found
    later = wall.replace(second=0, microsecond=0, fold=0) + _MINUTE
    while (found := later.replace(tzinfo=zone).astimezone(UTC)).astimezone(zone).replace(
        tzinfo=None
    ) != later:
        later += _MINUTE
    return found


def weekday_of(instant: datetime, zone: ZoneInfo) -> int:
    """Return the weekday in the zone at this instant; Sunday is 0."""
    return instant.astimezone(zone).isoweekday() % 7


def is_in_window(window: DailyWindow, instant: datetime, zone: ZoneInfo) -> bool:
    return window.contains(instant.astimezone(zone).time())


def window_around(window: DailyWindow, instant: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return begin and end (excluded) of the window around an instant that is inside it."""
    local = instant.astimezone(zone)
    crosses = window.end <= window.start
    opened = local.date() - _DAY if crosses and local.time() < window.end else local.date()
    closed = opened + _DAY if crosses else opened
    return _at(opened, window.start, zone), _at(closed, window.end, zone)


def day_around(instant: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return begin and end (excluded) of the calendar day of the zone around an instant."""
    today = instant.astimezone(zone).date()
    return _at(today, time(), zone), _at(today + _DAY, time(), zone)


def next_opening(window: DailyWindow, instant: datetime, zone: ZoneInfo) -> datetime:
    """Return when the window next opens after the instant."""
    day = instant.astimezone(zone).date()
    while (opening := _at(day, window.start, zone)) <= instant:
        day += _DAY
    return opening


def _at(day: date, moment: time, zone: ZoneInfo) -> datetime:
    return instant_of_wall_time(datetime.combine(day, moment), zone)
