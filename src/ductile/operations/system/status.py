"""The daemon itself: status, reload, stop; and the circuit breakers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

from ductile.config.secrets import redact
from ductile.config.snapshot import PluginInstance
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext, RunningEngine
from ductile.operations.jobs.documents import instant, shown_breaker, shown_execution
from ductile.operations.jobs.orphaned import count_orphaned
from ductile.operations.plugins.catalogue import known_command
from ductile.operations.plugins.health import shown_failed_init, unhealthy_plugins
from ductile.operations.plugins.names import unknown_plugin
from ductile.operations.schedules.listing import current_schedules
from ductile.operations.system.status_rows import running_jobs, troubled_first
from ductile.store.model.records import BreakerRow, LogFilter, LogRow
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import to_builtins

_HISTORY = 50
#: How long a drain is waited for where no time is given.
DEFAULT_DRAIN_TIMEOUT = timedelta(hours=1)
_ENDING_SECONDS = 20.0
#: In place of a status: the check could not be started now.
NOT_CHECKED = "not_asked"


def require_engine(context: OperationContext) -> RunningEngine:
    return context.require_engine()


async def status(context: OperationContext, given: JsonObject) -> JsonObject:
    """The daemon, the queue, and every plugin: what it keeps, when it ran and will run, how it is."""
    await context.store.check_files()
    snapshot = context.snapshot()
    counts = await context.store.counts()
    breakers = await context.store.breakers()
    schedules = await current_schedules(context)
    reveal = read.flag(given, "reveal")
    marks = await unhealthy_plugins(context)
    plugins = [
        await _plugin_status(context, plugin, breakers, schedules, reveal=reveal)
        | {"unhealthy": shown_failed_init(marks.get(plugin.name))}
        for plugin in snapshot.plugins.values()
    ]
    return {
        "daemon": _daemon(context),
        "queue": {
            "depth": counts.depth,
            "ready": counts.ready,
            "waiting": counts.waiting,
            "running": counts.running,
            "orphaned": await count_orphaned(context),
        },
        "running": await running_jobs(context),
        "plugins": troubled_first(plugins),
    }


def _daemon(context: OperationContext) -> JsonObject:
    if context.engine is not None:
        return {"running": True, **to_builtins(context.engine.status())}
    return (
        {"running": False}
        if context.runner_pid is None
        else {"running": False, "run_pid": context.runner_pid}
    )


async def _plugin_status(
    context: OperationContext,
    plugin: PluginInstance,
    breakers: tuple[BreakerRow, ...],
    schedules: tuple[ScheduleEntry, ...],
    *,
    reveal: bool,
) -> JsonObject:
    kept = await context.store.plugin_state(plugin.name)
    last = (await context.store.log(LogFilter(plugin=plugin.name, runs_only=True), limit=1)).rows
    health = (await context.store.log(LogFilter(plugin=plugin.name, command="health"), limit=1)).rows
    own = [entry for entry in schedules if entry.plugin == plugin.name]
    due = [entry.next_at for entry in own if entry.next_at and entry.paused_at is None]
    if context.engine is None:  # what is overdue runs at the next start, whenever that is
        due = [at for at in due if at > context.now()]
    state: JsonValue = {} if kept is None else kept.state
    return {
        "name": plugin.name,
        "uses": plugin.uses,
        "enabled": plugin.enabled,
        "draining": context.engine is not None and plugin.name in context.engine.draining,
        "refused": None if plugin.refused is None else plugin.refused.reason,
        "state": state if reveal else redact(state),
        "last_run": shown_execution(last[0]) if last else None,
        "next_run": instant(min(due, default=None)),
        "paused": bool(own) and all(entry.paused_at is not None for entry in own),
        "health": None if not health else health[0].status,
        "health_error": None if not health else health[0].error,
        "breakers": {
            row.command: shown_breaker(row.breaker) for row in breakers if row.plugin == plugin.name
        },
    }


async def check_health(context: OperationContext, given: JsonObject) -> JsonObject:
    """Run the `health` command of every plugin that has one, or of one plugin, and wait for the answers."""
    engine = require_engine(context)
    only = read.optional_text(given, "plugin")
    if only is not None:
        _configured(context, only)
    plugins = [
        plugin
        for plugin in context.snapshot().plugins.values()
        if plugin.runnable and only in (None, plugin.name) and has_command(plugin, "health")
    ]
    checks = (
        engine.share(f"health of {plugin.name}", partial(_check_one, context, engine, plugin))
        for plugin in plugins
    )
    return {"health": await asyncio.gather(*checks)}


async def past_health(context: OperationContext) -> dict[str, LogRow | None]:
    """The latest health check of every plugin that has one, by the name of the plugin."""
    found: dict[str, LogRow | None] = {}
    for plugin in context.snapshot().plugins.values():
        if plugin.runnable and has_command(plugin, "health"):
            rows = (await context.store.log(LogFilter(plugin=plugin.name, command="health"), limit=1)).rows
            found[plugin.name] = rows[0] if rows else None
    return found


def has_command(plugin: PluginInstance, command: str) -> bool:
    return plugin.installed is not None and command in plugin.installed.manifest.commands


async def _check_one(context: OperationContext, engine: RunningEngine, plugin: PluginInstance) -> JsonObject:
    """One attempt and no more: a health check that is retried says nothing about now.

    It starts at once, beside the queue. Only a plugin that does not bear two processes is not asked while
    as many of its jobs run as may.
    """
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=plugin.name,
        command="health",
        submitted_by=SubmittedBy.CORE,
        max_attempts=1,
        trace_id=make_trace_id(context.rng),
    )
    safe = plugin.installed is None or plugin.installed.manifest.concurrency_safe
    with engine.waiting_for(job.id) as ended:
        if not await engine.start_beside(job, limit=None if safe else plugin.parallelism):
            return {"plugin": plugin.name, "job_id": None, "status": NOT_CHECKED, "error": None}
        # The process is ended at its deadline, which takes a moment.
        await asyncio.wait({ended}, timeout=plugin.timeout_for("health").total_seconds() + _ENDING_SECONDS)
    found = await context.store.job(job.id)
    return {
        "plugin": plugin.name,
        "job_id": job.id,
        "status": "unknown" if found is None else found.status,
        "error": None if found is None else found.last_error,
    }


async def reload(context: OperationContext, given: JsonObject) -> JsonObject:
    """Apply the configuration on disk; with `drain`, after the plugins that it removes have run dry."""
    engine = require_engine(context)
    drain = drain_timeout(given) if read.flag(given, "drain") else None
    if read.flag(given, "dry_run"):
        return {**to_builtins(await engine.try_reload()), "dry_run": True}
    done: JsonObject = to_builtins(await engine.reload(drain))
    return done


def drain_timeout(given: JsonObject) -> timedelta:
    return read.optional_duration(given, "drain_timeout") or DEFAULT_DRAIN_TIMEOUT


async def stop(context: OperationContext, given: JsonObject) -> JsonObject:
    engine = require_engine(context)
    pid = engine.status().pid
    if read.flag(given, "dry_run"):
        return {"stopping": False, "pid": pid, "dry_run": True}
    engine.stop()
    return {"stopping": True, "pid": pid}


async def show_breaker(context: OperationContext, given: JsonObject) -> JsonObject:
    plugin = _configured(context, read.text(given, "plugin"))
    rows = [row for row in await context.store.breakers() if row.plugin == plugin]
    history = await context.store.breaker_history(plugin, limit=_HISTORY)
    return {
        "plugin": plugin,
        "breakers": {row.command: shown_breaker(row.breaker) for row in rows},
        "history": [
            {
                "at": instant(row.created_at),
                "command": row.command,
                "from": row.from_state,
                "to": row.to_state,
                "reason": row.reason,
                "failures": row.failures,
                "job_id": row.job_id,
            }
            for row in history
        ],
    }


async def reset_breaker(context: OperationContext, given: JsonObject) -> JsonObject:
    plugin = _configured(context, read.text(given, "plugin"))
    command = read.optional_text(given, "command")
    rows = [row for row in await context.store.breakers() if row.plugin == plugin]
    if command is not None and command not in {row.command for row in rows}:  # of one that is gone by now
        known_command(context.snapshot().plugins[plugin], command)
    if read.flag(given, "dry_run"):
        open_ones: list[JsonValue] = [
            row.command for row in rows if row.breaker.state != "closed" and command in (None, row.command)
        ]
        return {"plugin": plugin, "reset": 0, "would_reset": open_ones, "dry_run": True}
    reset = await context.store.reset_breaker(plugin, command)
    if context.engine is not None:
        context.engine.reschedule()
    return {"plugin": plugin, "reset": reset}


def _configured(context: OperationContext, plugin: str) -> str:
    if plugin not in context.snapshot().plugins:
        raise unknown_plugin(context.snapshot(), plugin)
    return plugin
