"""Schedules for tests, and instants as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from ductile.config.cron import CronTable
from ductile.core.durations import parse_interval
from ductile.core.schedules.planner import DuePlan, DueRun, plan_due
from ductile.core.schedules.rule import At, Cron, DailyWindow, Every, PlannedOccurrence, ScheduleRule

NEW_YORK = "America/New_York"
VIENNA = "Europe/Vienna"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def wall(instant: datetime, zone: str) -> str:
    """Return the local time of a zone with its abbreviation, which tells the two passes of an hour apart."""
    return instant.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M %Z")


def hours(text: str) -> DailyWindow:
    start, end = (time.fromisoformat(part) for part in text.split("-"))
    return DailyWindow(start=start, end=end)


def every(interval: str = "1h", **fields: Any) -> ScheduleRule:
    return ScheduleRule(trigger=Every(interval=parse_interval(interval)), **fields)


def cron(expression: str, timezone: str = "UTC", **fields: Any) -> ScheduleRule:
    times = CronTable(expression=expression, timezone=timezone)
    return ScheduleRule(trigger=Cron(times=times), timezone=timezone, **fields)


def at(text: str, **fields: Any) -> ScheduleRule:
    return ScheduleRule(trigger=At(instant=utc(text)), **fields)


def occurrence(text: str, start: str | None = None) -> PlannedOccurrence:
    return PlannedOccurrence(nominal_at=utc(text), start_at=utc(start or text))


def planned(
    rule: ScheduleRule, next_occurrence: PlannedOccurrence, now: str, armed: str | None = None, **fields: Any
) -> DuePlan:
    """Return the plan of a schedule that must be due. By default it has been active for a day."""
    plan = plan_due(
        rule,
        next_occurrence,
        now=utc(now),
        active_since=utc(armed) if armed else next_occurrence.start_at - timedelta(days=1),
        paused=fields.get("paused", False),
        rng=Random(1),
    )
    assert plan is not None
    return plan


def summarised(plan: DuePlan) -> list[str]:
    """Return each item as `HH:MM ran` or `HH:MM-HH:MM xN reason`, in UTC."""
    return [
        f"{item.nominal_at:%H:%M} ran"
        if isinstance(item, DueRun)
        else f"{item.nominal_at:%H:%M}-{item.until_at:%H:%M} x{item.count} {item.reason}"
        for item in plan.items
    ]
