"""Hours of the day and weekdays in a time zone, across clock changes.

Everything handed out is in UTC: two local times of one zone compare by what the wall shows, which is
wrong twice a year.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from ductile.struct import Value

_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)


class DailyWindow(Value):
    """From `start` up to and without `end`; an end that is not later lies on the next day."""

    start: time
    end: time

    def contains(self, moment: time) -> bool:
        if self.start < self.end:
            return self.start <= moment < self.end
        return moment >= self.start or moment < self.end


def instant_of_wall_time(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the clocks of the zone show this: the first time, and if they never do, right after the gap."""
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
    """The weekday of the zone at this instant; Sunday is 0."""
    return instant.astimezone(zone).isoweekday() % 7


def is_in_window(hours: DailyWindow, instant: datetime, zone: ZoneInfo) -> bool:
    return hours.contains(instant.astimezone(zone).time())


def window_around(hours: DailyWindow, instant: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The stretch of these hours that an instant within them lies in, the end excluded."""
    local = instant.astimezone(zone)
    crosses = hours.end <= hours.start
    opened = local.date() - _DAY if crosses and local.time() < hours.end else local.date()
    closed = opened + _DAY if crosses else opened
    return _at(opened, hours.start, zone), _at(closed, hours.end, zone)


def day_around(instant: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The calendar day of the zone that an instant lies in, the end excluded."""
    today = instant.astimezone(zone).date()
    return _at(today, time(), zone), _at(today + _DAY, time(), zone)


def next_opening(hours: DailyWindow, instant: datetime, zone: ZoneInfo) -> datetime:
    """When these hours begin next, later than the instant."""
    day = instant.astimezone(zone).date()
    while (opening := _at(day, hours.start, zone)) <= instant:
        day += _DAY
    return opening


def _at(day: date, moment: time, zone: ZoneInfo) -> datetime:
    return instant_of_wall_time(datetime.combine(day, moment), zone)
