"""Where schedules stand, for whoever looks: as the store has it or, where no daemon runs, as a start would.

Only the daemon enters schedules into the store. Before it has, and after the configuration was edited, what
the store has is not what will happen; so it is worked out here as the daemon would.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from ductile.config.snapshot import Schedule
from ductile.core.jobs.breaker import BreakerState
from ductile.core.json import JsonObject
from ductile.core.schedules.audit import Upcoming, preview_catch_up, preview_runs
from ductile.core.schedules.rule import ScheduleRule, describe_rule
from ductile.engine.schedules.entries import ScheduleKey, entries_for, slot_of
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant
from ductile.store.model.records import BreakerRow
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import replace


async def current_schedules(context: OperationContext) -> tuple[ScheduleEntry, ...]:
    """Every schedule, at the place it has, or will have as soon as a daemon starts."""
    stored = await context.store.schedules()
    if context.engine is not None:
        return stored
    now = context.now()
    before = {(entry.plugin, entry.schedule_id): entry for entry in stored}
    standing = entries_for(context.snapshot(), stored, now=now, started_at=now, rng=context.rng)
    return tuple(sorted((_kept(entry, before) for entry in standing), key=_name))


def _name(entry: ScheduleEntry) -> ScheduleKey:
    return entry.plugin, entry.schedule_id


def _kept(entry: ScheduleEntry, before: Mapping[ScheduleKey, ScheduleEntry]) -> ScheduleEntry:
    """What the store keeps of a schedule whose rule was edited."""
    known = before.get(_name(entry))
    if known is None or known == entry:
        return entry
    return replace(
        entry, last_fired_at=known.last_fired_at, last_job_id=known.last_job_id, paused_at=known.paused_at
    )


def configured(context: OperationContext, entry: ScheduleEntry) -> Schedule | None:
    """The schedule as the configuration has it, be its plugin able to run or not."""
    plugin = context.snapshot().plugins.get(entry.plugin)
    schedules = () if plugin is None else plugin.schedules
    return next((each for each in schedules if each.id == entry.schedule_id), None)


def shown_schedule(
    context: OperationContext, entry: ScheduleEntry, breakers: Mapping[ScheduleKey, BreakerRow]
) -> JsonObject:
    schedule = configured(context, entry)
    rule = None if schedule is None else schedule.rule
    breaker = None if schedule is None else breakers.get((entry.plugin, schedule.command))
    return {
        "plugin": entry.plugin,
        "id": entry.schedule_id,
        "command": None if schedule is None else schedule.command,
        "rule": None if rule is None else describe_rule(rule),
        "timezone": None if rule is None else rule.timezone,
        "next_at": instant(entry.next_at),
        "next_local": local_time(rule, entry.next_at),
        "nominal_at": instant(entry.nominal_at),
        "at_start": _waits_for_start(context, entry.next_at),
        "last_fired_at": instant(entry.last_fired_at),
        "last_job_id": entry.last_job_id,
        "paused_at": instant(entry.paused_at),
        "waiting_since": None if entry.deferred is None else instant(entry.deferred.start_at),
        "breaker": BreakerState.CLOSED if breaker is None else breaker.breaker.state,
    }


def upcoming_runs(context: OperationContext, entry: ScheduleEntry, runs: int) -> list[JsonObject]:
    """The next runs of a schedule, with what is skipped before them; none if it is paused or cannot run."""
    schedule, plugin = configured(context, entry), context.snapshot().plugins.get(entry.plugin)
    if schedule is None or plugin is None or not plugin.runnable or entry.paused_at is not None:
        return []
    return [
        {
            "plugin": entry.plugin,
            "id": entry.schedule_id,
            "start_at": instant(each.start_at),
            "local": local_time(schedule.rule, each.start_at),
            "nominal_at": instant(each.nominal_at),
            "at_start": _waits_for_start(context, each.start_at),
            "skip": each.skip,
            "skipped_until": instant(each.skipped_until),
        }
        for each in _upcoming(context, schedule.rule, entry, runs)
    ]


def _upcoming(
    context: OperationContext, rule: ScheduleRule, entry: ScheduleEntry, runs: int
) -> tuple[Upcoming, ...]:
    """Where nobody looks after it, what is overdue is made up for at the next start, or not at all."""
    slot = slot_of(entry)
    if context.engine is not None or slot is None:
        return preview_runs(rule, slot, runs)
    now = context.now()
    made_up, following = preview_catch_up(rule, slot, now=now, rng=context.rng)
    left = runs - len(made_up)
    return (*made_up, *preview_runs(rule, following, left)) if left > 0 else made_up[:runs]


def _waits_for_start(context: OperationContext, at: datetime | None) -> bool:
    return context.engine is None and at is not None and at <= context.now()


def local_time(rule: ScheduleRule | None, at: datetime | None) -> str | None:
    """The instant on the clock of the schedule's zone; None where that is UTC itself."""
    if rule is None or at is None:
        return None
    there = at.astimezone(rule.zone)
    if there.utcoffset() == at.astimezone(UTC).utcoffset() and there.tzname() in ("UTC", "GMT", "Z"):
        return None
    return f"{there:%Y-%m-%d %H:%M:%S %Z}"
