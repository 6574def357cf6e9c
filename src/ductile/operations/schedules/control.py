"""Schedules: where they stand, what is to come, what became of each due instant, and pausing them."""

from __future__ import annotations

from ductile.core.json import JsonObject
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError, UsageError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import shown_occurrence
from ductile.operations.plugins.names import known_plugin_filter, unknown_plugin
from ductile.operations.schedules.audit import audit_history
from ductile.operations.schedules.listing import current_schedules, shown_schedule, upcoming_runs
from ductile.operations.system.status import require_engine
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE
from ductile.store.model.schedules import ScheduleEntry

_DEFAULT = "default"


async def list_schedules(context: OperationContext, given: JsonObject) -> JsonObject:
    plugin = await known_plugin_filter(context, given)
    standing = [entry for entry in await current_schedules(context) if plugin in (None, entry.plugin)]
    breakers = {(row.plugin, row.command): row for row in await context.store.breakers()}
    return {"schedules": [shown_schedule(context, entry, breakers) for entry in standing]}


async def schedule_history(context: OperationContext, given: JsonObject) -> JsonObject:
    entry = await find_schedule(context, given)
    plugin, schedule_id = entry.plugin, entry.schedule_id
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    cursor = read.optional_text(given, "cursor")
    page = await context.store.occurrences(plugin, schedule_id, limit=limit, cursor=cursor)
    return {
        "plugin": plugin,
        "id": schedule_id,
        "occurrences": [shown_occurrence(row) for row in page.rows],
        "account": await audit_history(context, entry, page.rows, newest=cursor is None),
        "next_cursor": page.next_cursor,
    }


async def schedule_next(context: OperationContext, given: JsonObject) -> JsonObject:
    """The next runs, across clock changes, and what is skipped before them; of one schedule or of all."""
    plugin, schedule_id = await known_plugin_filter(context, given), read.optional_text(given, "schedule")
    count = read.number(given, "count", 10, most=1000)
    standing = [entry for entry in await current_schedules(context) if plugin in (None, entry.plugin)]
    named = [entry for entry in standing if schedule_id in (None, entry.schedule_id)]
    if schedule_id is not None and not named:
        others = ", ".join(sorted({entry.schedule_id for entry in standing}))
        raise NotFoundError(
            f"there is no schedule {schedule_id}", hint=f"There is {others}." if others else None
        )
    coming = [each for entry in named for each in upcoming_runs(context, entry, count)]
    coming.sort(key=lambda each: str(each["start_at"]))
    starting = [position for position, each in enumerate(coming) if each["skip"] is None]
    end = starting[count - 1] + 1 if len(starting) >= count else len(coming)
    return {"occurrences": [*coming[:end]]}


async def pause_schedule(context: OperationContext, given: JsonObject) -> JsonObject:
    return await _switch(context, given, paused=True)


async def resume_schedule(context: OperationContext, given: JsonObject) -> JsonObject:
    return await _switch(context, given, paused=False)


async def _switch(context: OperationContext, given: JsonObject, *, paused: bool) -> JsonObject:
    entry = await find_schedule(context, given)
    plugin, schedule_id = entry.plugin, entry.schedule_id
    if read.flag(given, "dry_run"):
        now = entry.paused_at is not None
        return {
            "plugin": plugin,
            "id": schedule_id,
            "paused": now,
            "would_be_paused": paused,
            "dry_run": True,
        }
    if paused or context.engine is None:
        await context.store.pause_schedule(plugin, schedule_id, paused=paused)
    else:
        await context.engine.resume_schedule(plugin, schedule_id)
    if context.engine is not None:
        context.engine.reschedule()
    return {"plugin": plugin, "id": schedule_id, "paused": paused}


async def run_schedule(context: OperationContext, given: JsonObject) -> JsonObject:
    engine = require_engine(context)
    entry = await find_schedule(context, given)
    plugin, schedule_id = entry.plugin, entry.schedule_id
    if read.flag(given, "dry_run"):
        return {"plugin": plugin, "id": schedule_id, "job_id": None, "dry_run": True}
    context.refuse_when_stopping()
    return {
        "plugin": plugin,
        "id": schedule_id,
        "job_id": await engine.run_schedule(plugin, schedule_id),
    }


async def find_schedule(context: OperationContext, given: JsonObject) -> ScheduleEntry:
    """The schedule that is meant. A plugin's only one need not be named, nor one called `default`."""
    plugin, wanted = read.text(given, "plugin"), read.optional_text(given, "schedule")
    entries = await context.store.schedules()
    own = {entry.schedule_id: entry for entry in entries if entry.plugin == plugin}
    if wanted is None and len(own) == 1:
        return next(iter(own.values()))
    if (entry := own.get(wanted or _DEFAULT)) is not None:
        return entry
    configured = context.snapshot().plugins.get(plugin)
    if not own and configured is not None and configured.schedules:
        raise NotFoundError(
            f"the schedules of {plugin} are not known to the store yet",
            hint="The daemon enters them when it starts, or reloads: ductile system start",
        )
    if not own and configured is None:
        raise unknown_plugin(context.snapshot(), plugin)
    if not own:
        near = did_you_mean(
            plugin, {*context.snapshot().plugins, *(each.plugin for each in entries)} - {plugin}
        )
        raise NotFoundError(f"{plugin} has no schedule", hint=near or "See `ductile schedule list`.")
    names = ", ".join(own)
    if wanted is None:
        raise UsageError(f"{plugin} has several schedules", hint=f"Name one of {names}.")
    raise NotFoundError(f"{plugin} has no schedule {wanted}", hint=f"It has {names}.")
