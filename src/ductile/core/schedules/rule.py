"""Compute when a schedule is due: its nominal instants, and the start of each with its random jitter.

The *nominal* instant identifies an occurrence and never changes. Its *start* is when it runs: moved into the
preferred window, with jitter. `planner` decides about missed occurrences, `admission` about running ones.

All returned instants are in UTC: local times of one zone compare by their wall time, which is wrong when the
clocks change.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from random import Random
from typing import Protocol, TypeAlias
from zoneinfo import ZoneInfo

from ductile.core.durations import CalendarStep, Interval, format_duration
from ductile.struct import Value

#: A smaller difference between two clocks does not mean that one was set.
CLOCK_SLACK = timedelta(seconds=1)
_MONTHS = 12
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_EPSILON = timedelta(microseconds=1)


class CatchUp(StrEnum):
    """The choices for occurrences that were missed."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"


class IfRunning(StrEnum):
    """The choices for an occurrence that is due before the previous run has ended."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


class CronTimes(Protocol):
    """A cron expression in its zone. It is implemented outside of the core, with a library."""

    @property
    def expression(self) -> str: ...

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first time after the instant, in UTC; None if there is none."""
        ...


class Every(Value):
    interval: Interval


class Cron(Value):
    times: CronTimes


class At(Value):
    instant: datetime


class After(Value):
    delay: timedelta


Trigger: TypeAlias = Every | Cron | At | After


class ScheduleRule(Value):
    """The settings that decide when a schedule runs."""

    trigger: Trigger
    timezone: str = "UTC"
    jitter: timedelta = timedelta()
    only_between: DailyWindow | None = None
    preferred_window: DailyWindow | None = None
    #: Weekdays without runs; Sunday is 0.
    not_on: frozenset[int] = frozenset()
    catch_up: CatchUp = CatchUp.SKIP
    if_running: IfRunning = IfRunning.SKIP

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.timezone)


class PlannedOccurrence(Value):
    """An occurrence that has not run: the instant that identifies it, and when it starts."""

    nominal_at: datetime
    start_at: datetime


def fingerprint_of(rule: ScheduleRule, started_at: datetime) -> str:
    """Return a text that changes if the instants of a schedule change: the next one is then planned again.

    For `after` it includes the start of the service, from which that counts.
    """
    window = rule.preferred_window
    zone_text = f"in {rule.timezone}" + (f" within {window.start}-{window.end}" if window else "")
    match rule.trigger:
        case Every(interval=interval):
            step = interval if isinstance(interval, CalendarStep) else interval.total_seconds()
            return f"every {step} {zone_text}"
        case Cron(times=times):
            return f"cron {times.expression} {zone_text}"
        case At(instant=instant):
            return f"at {instant.astimezone(UTC).isoformat()} {zone_text}"
        case After(delay=delay):
            return f"after {delay.total_seconds()} from {started_at.astimezone(UTC).isoformat()} {zone_text}"


def describe_rule(rule: ScheduleRule) -> str:
    """Return the rule as text: `every 5m ±15s`, `cron 30 2 * * *`, with hours and days."""
    parts: list[str] = []
    match rule.trigger:
        case Every(interval=interval):
            step = interval if isinstance(interval, CalendarStep) else format_duration(interval)
            parts.append(f"every {step}")
        case Cron(times=times):
            parts.append(f"cron {times.expression}")
        case At(instant=instant):
            parts.append(f"at {instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
        case After(delay=delay):
            parts.append(f"after {format_duration(delay)}")
    if rule.jitter:
        parts.append(f"±{format_duration(rule.jitter / 2)}")
    if rule.preferred_window is not None:
        parts.append(f"within {_window_text(rule.preferred_window)}")
    if rule.only_between is not None:
        parts.append(f"only {_window_text(rule.only_between)}")
    if rule.not_on:
        parts.append(f"not on {', '.join(_WEEKDAYS[day] for day in sorted(rule.not_on))}")
    return " ".join(parts)


def _window_text(hours: DailyWindow) -> str:
    return f"{hours.start:%H:%M}-{hours.end:%H:%M}"


def first_occurrence(
    rule: ScheduleRule, *, now: datetime, started_at: datetime, rng: Random
) -> PlannedOccurrence | None:
    """Return the first occurrence of a new or redefined schedule; None if it has none."""
    match rule.trigger:
        case Every():
            first_at = move_into_window(rule, now)
            return PlannedOccurrence(nominal_at=first_at, start_at=first_at)
        case Cron(times=times):
            return plan_occurrence(rule, times.next_after(now), earliest=now, rng=rng)
        case At(instant=instant):
            # Not moved to now: an instant in the past was missed, and has to be reported as missed.
            return plan_occurrence(rule, instant, earliest=None, rng=rng)
        case After(delay=delay):
            # Added by a reload after its time: it runs after the next start of the service.
            nominal = started_at + delay
            return plan_occurrence(rule, nominal if nominal >= now else None, earliest=now, rng=rng)


def occurrence_after_edit(
    rule: ScheduleRule, last_fired_at: datetime | None, *, now: datetime, started_at: datetime, rng: Random
) -> PlannedOccurrence | None:
    """Return the next occurrence of an edited schedule: an `every` counts from its last run."""
    if last_fired_at is None or not isinstance(rule.trigger, Every):
        return first_occurrence(rule, now=now, started_at=started_at, rng=rng)
    next_at = move_into_window(rule, max(now, add_intervals(rule, last_fired_at)))
    return PlannedOccurrence(nominal_at=next_at, start_at=next_at)


def occurrence_after_run(rule: ScheduleRule, *, ended_at: datetime, rng: Random) -> PlannedOccurrence | None:
    """Return the next occurrence of an `every`, counted from the end of its run; None for other triggers."""
    if not isinstance(rule.trigger, Every):
        return None
    return plan_occurrence(
        rule, move_into_window(rule, add_intervals(rule, ended_at)), earliest=ended_at, rng=rng
    )


def occurrence_after_clock_set_back(
    rule: ScheduleRule, occurrence: PlannedOccurrence, *, now: datetime, rng: Random
) -> PlannedOccurrence | None:
    """Return a nearer occurrence if this one is further away than the rule permits: the clock was set back.

    None if the occurrence is right. An `at` keeps its instant.
    """
    # Jitter can put a start before its nominal instant; the next occurrence is then after that instant.
    limit = _nominal_after(rule, now + rule.jitter / 2 + CLOCK_SLACK)
    if limit is None or occurrence.nominal_at <= limit:
        return None
    return plan_occurrence(rule, _nominal_after(rule, now), earliest=now, rng=rng)


def _nominal_after(rule: ScheduleRule, now: datetime) -> datetime | None:
    """Return the latest possible nominal instant of the next occurrence after `now`."""
    match rule.trigger:
        case Every():
            return move_into_window(rule, add_intervals(rule, now))
        case Cron(times=times):
            return times.next_after(now)
        case After(delay=delay):
            return now + delay
        case At():
            return None


def plan_occurrence(
    rule: ScheduleRule, nominal: datetime | None, *, earliest: datetime | None, rng: Random
) -> PlannedOccurrence | None:
    """Return the occurrence of a nominal instant. It starts not before `earliest` if possible, at a random
    instant within the jitter, as far as the hours and days of the rule allow.
    """
    if nominal is None:
        return None
    base = move_into_window(rule, nominal)
    if not rule.jitter:
        return PlannedOccurrence(nominal_at=nominal, start_at=base)
    low, high = base - rule.jitter / 2, base + rule.jitter / 2
    bounds = [
        window_around(window, base, rule.zone)
        for window in (rule.preferred_window, rule.only_between)
        if window is not None and is_in_window(window, base, rule.zone)
    ]
    if rule.not_on and weekday_of(base, rule.zone) not in rule.not_on:
        bounds.append(day_around(base, rule.zone))
    for begin, end in bounds:
        low, high = max(low, min(begin, base)), min(high, max(end - _EPSILON, base))
    if earliest is not None:
        low = max(low, min(earliest, base))
    return PlannedOccurrence(nominal_at=nominal, start_at=low + (high - low) * rng.random())


def nominal_instants_from(rule: ScheduleRule, first: datetime) -> Iterator[datetime]:
    """Yield the nominal instant and all nominal instants after it, as if no run changed them."""
    yield first
    match rule.trigger:
        case Every():
            # Counted from one anchor, so that the 31st comes back after a short month.
            anchor, count = first, 0
            while True:
                count += 1
                stepped = add_intervals(rule, anchor, count)
                nominal = move_into_window(rule, stepped)
                if nominal != stepped:
                    anchor, count = nominal, 0
                yield nominal
        case Cron(times=times):
            following = times.next_after(first)
            while following is not None:
                yield following
                following = times.next_after(following)
        case At() | After():
            return


def add_intervals(rule: ScheduleRule, instant: datetime, count: int = 1) -> datetime:
    """Return the instant `count` intervals of an `every` later. Calendar steps keep the local time of day."""
    assert isinstance(rule.trigger, Every)  # noqa: S101 - other triggers have no interval
    interval = rule.trigger.interval
    if isinstance(interval, timedelta):
        return instant + count * interval
    wall = instant.astimezone(rule.zone).replace(tzinfo=None, fold=0)
    match interval:
        case CalendarStep.DAILY:
            wall += timedelta(days=count)
        case CalendarStep.WEEKLY:
            wall += timedelta(weeks=count)
        case CalendarStep.MONTHLY:
            years, month = divmod(wall.month - 1 + count, _MONTHS)
            year, month = wall.year + years, month + 1
            # In a month that is too short, its last day.
            wall = wall.replace(year=year, month=month, day=min(wall.day, monthrange(year, month)[1]))
    return instant_of_wall_time(wall, rule.zone)


def move_into_window(rule: ScheduleRule, nominal: datetime) -> datetime:
    """Return the nominal instant, or the next start of the preferred window if it is outside of that."""
    window = rule.preferred_window
    if window is None or is_in_window(window, nominal, rule.zone):
        return nominal
    return window_start_after(window, nominal, rule.zone)


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
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None, fold=0) == wall.replace(fold=0):
        return instant
    later = wall.replace(second=0, microsecond=0, fold=0)
    while True:
        later += _MINUTE
        instant = later.replace(tzinfo=zone).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) == later:
            return instant


def weekday_of(instant: datetime, zone: ZoneInfo) -> int:
    """Return the weekday in the zone at this instant; Sunday is 0."""
    return instant.astimezone(zone).isoweekday() % 7


def is_in_window(window: DailyWindow, instant: datetime, zone: ZoneInfo) -> bool:
    return window.contains(instant.astimezone(zone).time())


def window_around(window: DailyWindow, instant: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return begin and end (excluded) of the window around an instant that is inside it."""
    local = instant.astimezone(zone)
    crosses = window.end <= window.start
    begin = local.date() - _DAY if crosses and local.time() < window.end else local.date()
    end = begin + _DAY if crosses else begin
    return _instant_at(begin, window.start, zone), _instant_at(end, window.end, zone)


def day_around(instant: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return begin and end (excluded) of the calendar day of the zone around an instant."""
    today = instant.astimezone(zone).date()
    return _instant_at(today, time(), zone), _instant_at(today + _DAY, time(), zone)


def window_start_after(window: DailyWindow, instant: datetime, zone: ZoneInfo) -> datetime:
    """Return the first start of the window after the instant."""
    day = instant.astimezone(zone).date()
    while (opening := _instant_at(day, window.start, zone)) <= instant:
        day += _DAY
    return opening


def _instant_at(day: date, moment: time, zone: ZoneInfo) -> datetime:
    return instant_of_wall_time(datetime.combine(day, moment), zone)
