"""Schedules: find one, list them, preview their next runs, pause, resume or run one now.

Only the daemon writes schedules to the store. Before it has done so, and after the configuration was edited,
the stored entries are not what will happen; without a daemon they are computed here as the next start would.
"""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ductile.config.snapshot import Schedule
from ductile.core.jobs.failures import BreakerState
from ductile.core.schedules.audit import preview_catch_up, preview_runs
from ductile.core.schedules.planner import SkipReason
from ductile.core.schedules.rule import ScheduleRule, describe_rule
from ductile.core.suggest import did_you_mean
from ductile.engine.schedules.entries import entries_for, next_occurrence_of
from ductile.errors import NotFoundError, UsageError
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import refuse_unknown_plugin, unknown_plugin
from ductile.operations.request import DryRun
from ductile.operations.response import Id, Response, Timestamp, WasDryRun, from_record, timestamp
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import Value, about, replace

DEFAULT_SCHEDULE = "default"


class OneSchedule(Value):
    """A request about one schedule."""

    plugin: Annotated[str, about("Name of the plugin, as it is configured.")]
    schedule: Annotated[
        str | None, about("Its schedule; may be left out if there is only one, or for `default`.")
    ] = None


class ListSchedules(Value):
    plugin: Annotated[str | None, about("Only schedules of this plugin.")] = None


class ListedSchedule(Value):
    plugin: str
    id: str
    command: str | None
    rule: Annotated[
        str | None, about("As it is written, such as `every 5m`; null if it is configured no more.")
    ]
    timezone: str | None
    next_at: Timestamp | None
    next_local: Annotated[str | None, about("The same in the schedule's zone, where that is not UTC.")]
    nominal_at: Timestamp | None
    at_start: Annotated[bool, about("Whether it is due as soon as a daemon runs.")]
    last_fired_at: Timestamp | None
    last_job_id: Id | None
    paused_at: Timestamp | None
    waiting_since: Annotated[
        Timestamp | None, about("Since when an occurrence waits for other polls of the plugin to end.")
    ]
    breaker: BreakerState


class ScheduleList(Response):
    schedules: tuple[ListedSchedule, ...]


class PreviewRuns(Value):
    plugin: Annotated[str | None, about("Only schedules of this plugin.")] = None
    schedule: Annotated[str | None, about("Only this schedule.")] = None
    count: Annotated[int, Meta(ge=1, le=1000, description="How many runs.")] = 10


class UpcomingRun(Value):
    plugin: str
    id: str
    start_at: Timestamp
    local: Annotated[str | None, about("The start in the schedule's zone, where that is not UTC.")]
    nominal_at: Timestamp
    at_start: Annotated[bool, about("Whether it is due as soon as a daemon runs.")]
    skip: Annotated[SkipReason | None, about("Why it will be skipped.")]
    skipped_until: Timestamp | None


class UpcomingRuns(Response):
    occurrences: tuple[UpcomingRun, ...]


class ChangeSchedule(OneSchedule):
    dry_run: DryRun = False


class ScheduleSwitched(Response):
    plugin: str
    id: str
    paused: Annotated[bool, about("Whether it is paused now.")]
    would_be_paused: bool | UnsetType = UNSET
    dry_run: WasDryRun = UNSET


class ScheduleStarted(Response):
    plugin: str
    id: str
    job_id: Id | None


class ScheduleNotStarted(ScheduleStarted):
    """The response to a dry run."""

    STATUS = HTTPStatus.OK

    dry_run: WasDryRun


async def find_schedule(context: OperationContext, plugin: str, schedule: str | None) -> ScheduleEntry:
    """Return the stored schedule of a plugin. Without a name, its only schedule or the one named `default`.

    Raises `NotFoundError`, or `UsageError` if several may be meant.
    """
    entries = await context.store.list_schedules()
    own = {entry.schedule_id: entry for entry in entries if entry.plugin == plugin}
    if schedule is None and len(own) == 1:
        return next(iter(own.values()))
    if (entry := own.get(schedule or DEFAULT_SCHEDULE)) is not None:
        return entry
    if own:
        names = ", ".join(own)
        if schedule is None:
            raise UsageError(f"{plugin} has several schedules", hint=f"Name one of {names}.")
        raise NotFoundError(f"{plugin} has no schedule {schedule}", hint=f"It has {names}.")
    plugins = context.snapshot().plugins
    if plugin not in plugins:
        raise unknown_plugin(context.snapshot(), plugin)
    if plugins[plugin].schedules:
        raise NotFoundError(
            f"the schedules of {plugin} are not in the store yet",
            hint="The daemon enters them when it starts, or reloads: ductile system start",
        )
    hint = did_you_mean(plugin, {*plugins, *(known.plugin for known in entries)} - {plugin})
    raise NotFoundError(f"{plugin} has no schedule", hint=hint or "See `ductile schedule list`.")


async def current_schedules(context: OperationContext) -> tuple[ScheduleEntry, ...]:
    """Return the entries of all schedules; without a daemon, as the next start will make them."""
    stored = await context.store.list_schedules()
    if context.engine is not None:
        # After a reload the scheduler removes entries a moment later than the schedules are gone.
        return tuple(
            entry for entry in stored if configured_schedule(context, entry.plugin, entry.schedule_id)
        )
    now = context.now()
    before = {(entry.plugin, entry.schedule_id): entry for entry in stored}
    computed = []
    for entry in entries_for(context.snapshot(), stored, now=now, started_at=now, rng=context.rng):
        # An edited rule changes when the schedule is due, not its past and not whether it is paused.
        known = before.get((entry.plugin, entry.schedule_id), entry)
        fired_at, job_id, paused_at = known.last_fired_at, known.last_job_id, known.paused_at
        computed.append(replace(entry, last_fired_at=fired_at, last_job_id=job_id, paused_at=paused_at))
    return tuple(sorted(computed, key=lambda entry: (entry.plugin, entry.schedule_id)))


def configured_schedule(context: OperationContext, plugin: str, schedule_id: str) -> Schedule | None:
    """Return the schedule in the configuration, whether or not its plugin can run."""
    instance = context.snapshot().plugins.get(plugin)
    schedules = () if instance is None else instance.schedules
    return next((schedule for schedule in schedules if schedule.id == schedule_id), None)


async def list_schedules(context: OperationContext, request: ListSchedules) -> ScheduleList:
    """Return every schedule. Raises `NotFoundError` for a plugin that is unknown and has no jobs."""
    await refuse_unknown_plugin(context, request.plugin)
    breakers = {(row.plugin, row.command): row for row in await context.store.list_breakers()}
    listed = []
    for entry in await current_schedules(context):
        if request.plugin not in (None, entry.plugin):
            continue
        schedule = configured_schedule(context, entry.plugin, entry.schedule_id)
        rule = None if schedule is None else schedule.rule
        breaker = None if schedule is None else breakers.get((entry.plugin, schedule.command))
        listed.append(
            from_record(
                ListedSchedule,
                entry,
                id=entry.schedule_id,
                command=None if schedule is None else schedule.command,
                rule=None if rule is None else describe_rule(rule),
                timezone=None if rule is None else rule.timezone,
                next_local=_local_time(rule, entry.next_at),
                at_start=_waits_for_start(context, entry.next_at),
                waiting_since=None if entry.deferred is None else timestamp(entry.deferred.start_at),
                breaker=BreakerState.CLOSED if breaker is None else breaker.breaker.state,
            )
        )
    return ScheduleList(schedules=tuple(listed))


async def preview(context: OperationContext, request: PreviewRuns) -> UpcomingRuns:
    """Return the next `count` runs of the selected schedules, and the occurrences skipped before them."""
    await refuse_unknown_plugin(context, request.plugin)
    entries = [entry for entry in await current_schedules(context) if request.plugin in (None, entry.plugin)]
    selected = [entry for entry in entries if request.schedule in (None, entry.schedule_id)]
    if request.schedule is not None and not selected:
        others = ", ".join(sorted({entry.schedule_id for entry in entries}))
        raise NotFoundError(
            f"there is no schedule {request.schedule}", hint=f"There is {others}." if others else None
        )
    upcoming = [run for entry in selected for run in _upcoming(context, entry, request.count)]
    upcoming.sort(key=lambda run: run.start_at)
    positions = [position for position, run in enumerate(upcoming) if run.skip is None]
    end = positions[request.count - 1] + 1 if len(positions) >= request.count else len(upcoming)
    return UpcomingRuns(occurrences=tuple(upcoming[:end]))


def _upcoming(context: OperationContext, entry: ScheduleEntry, count: int) -> list[UpcomingRun]:
    """Return the next occurrences of one schedule; none if it is paused or its plugin cannot run."""
    schedule = configured_schedule(context, entry.plugin, entry.schedule_id)
    plugin = context.snapshot().plugins.get(entry.plugin)
    if schedule is None or plugin is None or not plugin.runnable or entry.paused_at is not None:
        return []
    rule, next_occurrence = schedule.rule, next_occurrence_of(entry)
    if context.engine is not None or next_occurrence is None:
        runs = preview_runs(rule, next_occurrence, count)
    else:  # Overdue occurrences are caught up by the next start, by the setting `catch_up`.
        caught_up, following = preview_catch_up(rule, next_occurrence, now=context.now(), rng=context.rng)
        missing = count - len(caught_up)
        runs = (*caught_up, *preview_runs(rule, following, missing)) if missing > 0 else caught_up[:count]
    return [
        from_record(
            UpcomingRun,
            run,
            plugin=entry.plugin,
            id=entry.schedule_id,
            local=_local_time(rule, run.start_at),
            at_start=_waits_for_start(context, run.start_at),
        )
        for run in runs
    ]


def _waits_for_start(context: OperationContext, at: datetime | None) -> bool:
    """Return whether an occurrence is due and no daemon runs."""
    return context.engine is None and at is not None and at <= context.now()


def _local_time(rule: ScheduleRule | None, at: datetime | None) -> str | None:
    """Return the instant in the schedule's zone; None where that is UTC."""
    if rule is None or at is None:
        return None
    local = at.astimezone(rule.zone)
    if local.utcoffset() == at.astimezone(UTC).utcoffset() and local.tzname() in ("UTC", "GMT", "Z"):
        return None
    return f"{local:%Y-%m-%d %H:%M:%S %Z}"


async def pause_schedule(context: OperationContext, request: ChangeSchedule) -> ScheduleSwitched:
    return await _set_paused(context, request, paused=True)


async def resume_schedule(context: OperationContext, request: ChangeSchedule) -> ScheduleSwitched:
    return await _set_paused(context, request, paused=False)


async def _set_paused(
    context: OperationContext, request: ChangeSchedule, *, paused: bool
) -> ScheduleSwitched:
    entry = await find_schedule(context, request.plugin, request.schedule)
    switched = ScheduleSwitched(plugin=entry.plugin, id=entry.schedule_id, paused=paused)
    if request.dry_run:
        was_paused = entry.paused_at is not None
        return replace(switched, paused=was_paused, would_be_paused=paused, dry_run=True)
    if paused or context.engine is None:
        await context.store.pause_schedule(entry.plugin, entry.schedule_id, paused=paused)
    else:
        await context.engine.scheduler.resume(entry.plugin, entry.schedule_id)
    return switched


async def run_schedule(
    context: OperationContext, request: ChangeSchedule
) -> ScheduleStarted | ScheduleNotStarted:
    """Start a run now. Raises `ConflictError` if another run prevents it."""
    engine = context.require_engine()
    entry = await find_schedule(context, request.plugin, request.schedule)
    if request.dry_run:
        return ScheduleNotStarted(plugin=entry.plugin, id=entry.schedule_id, job_id=None, dry_run=True)
    context.refuse_when_stopping()
    job_id = await engine.scheduler.run_now(
        entry.plugin, entry.schedule_id, token=context.source.token, charge=context.charge
    )
    return ScheduleStarted(plugin=entry.plugin, id=entry.schedule_id, job_id=job_id)
