"""Figures about the queue and about what ran: a glance for dashboards and agents."""

from __future__ import annotations

from datetime import timedelta

from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant, milliseconds
from ductile.store.model.records import ExecutionStats

_DEFAULT_SPAN = timedelta(hours=24)
#: More executions than this are not looked at, however long the span.
_LATEST = 50_000


async def queue_analytics(context: OperationContext, _given: JsonObject) -> JsonObject:
    """How deep the queue is, plugin by plugin, and how long the first in line has waited."""
    counts = await context.store.counts()
    now = context.now()
    return {
        "depth": counts.depth,
        "ready": counts.ready,
        "waiting": counts.waiting,
        "running": counts.running,
        "workers": context.snapshot().max_workers,
        "plugins": [
            {
                "plugin": row.plugin,
                "ready": row.ready,
                "waiting": row.waiting,
                "running": row.running,
                "oldest_ready_at": instant(row.oldest_ready_at),
                "oldest_wait_ms": milliseconds(
                    None if row.oldest_ready_at is None else now - row.oldest_ready_at
                ),
            }
            for row in await context.store.queue_depths()
        ],
    }


async def summary(context: OperationContext, given: JsonObject) -> JsonObject:
    """How executions ended within a span of time, plugin by plugin."""
    asked = read.optional_duration(given, "span")
    since = context.now() - (_DEFAULT_SPAN if asked is None else asked)
    execution_stats = await context.store.execution_stats(since=since, latest=_LATEST)
    plugins = dict.fromkeys(tally.plugin for tally in execution_stats)
    return {
        "since": instant(since),
        "executions": sum(tally.executions for tally in execution_stats),
        "plugins": [
            _of_plugin(name, [each for each in execution_stats if each.plugin == name]) for name in plugins
        ],
    }


def _of_plugin(name: str, execution_stats: list[ExecutionStats]) -> JsonObject:
    executions = sum(tally.executions for tally in execution_stats)
    succeeded = sum(tally.executions for tally in execution_stats if tally.status is LogStatus.SUCCEEDED)
    spent = sum((tally.mean * tally.executions for tally in execution_stats), timedelta())
    return {
        "plugin": name,
        "executions": executions,
        "by_status": {tally.status: tally.executions for tally in execution_stats},
        "success_ratio": round(succeeded / executions, 4),
        "mean_ms": milliseconds(spent / executions),
        "longest_ms": milliseconds(max(tally.longest for tally in execution_stats)),
    }
