"""When a schedule is due: its rule, the instants it names, and the start that is drawn for each.

A *nominal* instant is what an occurrence is called by and never changes. Its *start* is when it is
meant to run: moved into the preferred window, and jittered. Nothing here knows what was missed or what
runs; that is `occurrences` and `firing`.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Protocol, TypeAlias
from zoneinfo import ZoneInfo

from ductile.core.durations import CalendarStep, Interval, format_duration
from ductile.core.schedules.windows import (
    DailyWindow,
    day_around,
    instant_of_wall_time,
    is_in_window,
    next_opening,
    weekday_of,
    window_around,
)
from ductile.struct import Value

#: Clocks that differ by less than this have not been set.
CLOCK_SLACK = timedelta(seconds=1)
_MONTHS = 12
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_TICK = timedelta(microseconds=1)


class CatchUp(StrEnum):
    """What becomes of occurrences that nobody was there for."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    RUN_ALL = "run_all"


class IfRunning(StrEnum):
    """What to do when the previous run has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


class CronTimes(Protocol):
    """A cron expression in its zone. Evaluating one takes a library, which the core does not have."""

    @property
    def expression(self) -> str: ...

    def next_after(self, instant: datetime) -> datetime | None:
        """The first time later than the instant, in UTC; None if there is none in our lifetime."""
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
    """Everything that decides when one schedule runs."""

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


class Slot(Value):
    """An occurrence to come: what it is called, and when it starts."""

    nominal_at: datetime
    start_at: datetime


def fingerprint_of(rule: ScheduleRule, started_at: datetime) -> str:
    """Changes exactly when a schedule has to give up its place: its instants are others now.

    The start of the service is part of `after`, which thereby begins anew with each one.
    """
    window = rule.preferred_window
    moved = f" within {window.start}-{window.end}" if window else ""
    return f"{_trigger_fingerprint(rule.trigger, started_at)} in {rule.timezone}{moved}"


def _trigger_fingerprint(trigger: Trigger, started_at: datetime) -> str:
    match trigger:
        case Every(interval=interval):
            return f"every {interval if isinstance(interval, CalendarStep) else interval.total_seconds()}"
        case Cron(times=times):
            return f"cron {times.expression}"
        case At(instant=instant):
            return f"at {instant.astimezone(UTC).isoformat()}"
        case After(delay=delay):
            return f"after {delay.total_seconds()} from {started_at.astimezone(UTC).isoformat()}"


def describe_rule(rule: ScheduleRule) -> str:
    """The rule as one would write it: `every 5m ±15s`, `cron 30 2 * * *`, with its hours and days."""
    parts = [_describe_trigger(rule.trigger)]
    if rule.jitter:
        parts.append(f"±{format_duration(rule.jitter / 2)}")
    if rule.preferred_window is not None:
        parts.append(f"within {_hours(rule.preferred_window)}")
    if rule.only_between is not None:
        parts.append(f"only {_hours(rule.only_between)}")
    if rule.not_on:
        parts.append(f"not on {', '.join(_WEEKDAYS[day] for day in sorted(rule.not_on))}")
    return " ".join(parts)


def _describe_trigger(trigger: Trigger) -> str:
    match trigger:
        case Every(interval=interval):
            return f"every {interval if isinstance(interval, CalendarStep) else format_duration(interval)}"
        case Cron(times=times):
            return f"cron {times.expression}"
        case At(instant=instant):
            return f"at {instant.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        case After(delay=delay):
            return f"after {format_duration(delay)}"


def _hours(hours: DailyWindow) -> str:
    return f"{hours.start:%H:%M}-{hours.end:%H:%M}"


def first_slot(rule: ScheduleRule, *, now: datetime, started_at: datetime, rng: Random) -> Slot | None:
    """Where a schedule begins that was not known before, or that has been redefined."""
    match rule.trigger:
        case Every():
            begin = snap_to_window(rule, now)
            return Slot(nominal_at=begin, start_at=begin)
        case Cron(times=times):
            return draw_slot(rule, times.next_after(now), earliest=now, rng=rng)
        case At(instant=instant):
            # Not pulled up to now: an instant that is long past was missed, and that must show.
            return draw_slot(rule, instant, earliest=None, rng=rng)
        case After(delay=delay):
            # Added by a reload after its time: it has to wait for the next start of the service.
            nominal = started_at + delay
            return draw_slot(rule, nominal if nominal >= now else None, earliest=now, rng=rng)


def slot_after_edit(
    rule: ScheduleRule, last_fired_at: datetime | None, *, now: datetime, started_at: datetime, rng: Random
) -> Slot | None:
    """Where a schedule goes on whose definition was edited: an `every` counts from its last run."""
    if last_fired_at is None or not isinstance(rule.trigger, Every):
        return first_slot(rule, now=now, started_at=started_at, rng=rng)
    begin = snap_to_window(rule, max(now, add_intervals(rule, last_fired_at)))
    return Slot(nominal_at=begin, start_at=begin)


def slot_after_run(rule: ScheduleRule, *, ended_at: datetime, rng: Random) -> Slot | None:
    """The next run of an `every`, counted from the end of the latest one; None for the others."""
    if not isinstance(rule.trigger, Every):
        return None
    return draw_slot(rule, snap_to_window(rule, add_intervals(rule, ended_at)), earliest=ended_at, rng=rng)


def slot_after_clock_set_back(rule: ScheduleRule, slot: Slot, *, now: datetime, rng: Random) -> Slot | None:
    """A nearer place for a slot that lies further off than its rule can mean: the clock was set back.

    None if the place is right. An `at` means its instant, whatever the clock says meanwhile.
    """
    # A start may be drawn ahead of its nominal instant, which then is accounted for already.
    limit = _nominal_after(rule, now + rule.jitter / 2 + CLOCK_SLACK)
    if limit is None or slot.nominal_at <= limit:
        return None
    return draw_slot(rule, _nominal_after(rule, now), earliest=now, rng=rng)


def _nominal_after(rule: ScheduleRule, now: datetime) -> datetime | None:
    """The furthest that the next occurrence can be named for, seen from this instant."""
    match rule.trigger:
        case Every():
            return snap_to_window(rule, add_intervals(rule, now))
        case Cron(times=times):
            return times.next_after(now)
        case After(delay=delay):
            return now + delay
        case At():
            return None


def draw_slot(
    rule: ScheduleRule, nominal: datetime | None, *, earliest: datetime | None, rng: Random
) -> Slot | None:
    """The slot of a nominal instant, its start drawn once: not before `earliest` unless that has passed."""
    if nominal is None:
        return None
    return Slot(nominal_at=nominal, start_at=_draw_start(rule, snap_to_window(rule, nominal), earliest, rng))


def nominal_instants_from(rule: ScheduleRule, first: datetime) -> Iterator[datetime]:
    """The nominal instant and all that follow it, as they come if nothing re-draws them."""
    yield first
    match rule.trigger:
        case Every():
            yield from _steps_from(rule, first)
        case Cron(times=times):
            following = times.next_after(first)
            while following is not None:
                yield following
                following = times.next_after(following)
        case At() | After():
            return


def _steps_from(rule: ScheduleRule, anchor: datetime) -> Iterator[datetime]:
    """Counted from one anchor: the 31st comes back after a short month."""
    count = 0
    while True:
        count += 1
        stepped = add_intervals(rule, anchor, count)
        placed = snap_to_window(rule, stepped)
        if placed != stepped:
            anchor, count = placed, 0
        yield placed


def add_intervals(rule: ScheduleRule, instant: datetime, count: int = 1) -> datetime:
    """So many intervals of an `every` later. Calendar steps keep the time of day of the zone."""
    assert isinstance(rule.trigger, Every)  # noqa: S101 - the others have no interval
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
            wall = _add_months(wall, count)
    return instant_of_wall_time(wall, rule.zone)


def _add_months(wall: datetime, count: int) -> datetime:
    """The same day of a later month, or its last day if it is too short."""
    years, month = divmod(wall.month - 1 + count, _MONTHS)
    year, month = wall.year + years, month + 1
    return wall.replace(year=year, month=month, day=min(wall.day, monthrange(year, month)[1]))


def snap_to_window(rule: ScheduleRule, nominal: datetime) -> datetime:
    """Where a nominal instant comes to lie, before jitter: inside the preferred window."""
    window = rule.preferred_window
    if window is None or is_in_window(window, nominal, rule.zone):
        return nominal
    return next_opening(window, nominal, rule.zone)


def _draw_start(rule: ScheduleRule, placed: datetime, earliest: datetime | None, rng: Random) -> datetime:
    """Evenly from the span of the jitter, as far as that stays within the hours and days that are allowed."""
    if not rule.jitter:
        return placed
    low, high = placed - rule.jitter / 2, placed + rule.jitter / 2
    for opened, closed in _bounds(rule, placed):
        low, high = max(low, min(opened, placed)), min(high, max(closed - _TICK, placed))
    if earliest is not None:
        low = max(low, min(earliest, placed))
    return low + (high - low) * rng.random()


def _bounds(rule: ScheduleRule, placed: datetime) -> Iterator[tuple[datetime, datetime]]:
    for hours in (rule.preferred_window, rule.only_between):
        if hours is not None and is_in_window(hours, placed, rule.zone):
            yield window_around(hours, placed, rule.zone)
    if rule.not_on and weekday_of(placed, rule.zone) not in rule.not_on:
        yield day_around(placed, rule.zone)
