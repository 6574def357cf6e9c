"""Figures about the queue and about what ran: a glance for dashboards and agents."""

from __future__ import annotations

from datetime import timedelta

from ductile.core.json_values import JsonObject
from ductile.core.settlement import LogStatus
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.shown import instant, milliseconds
from ductile.store.values.reading import Tally

_DEFAULT_SPAN = timedelta(hours=24)
#: More executions than this are not looked at, however long the span.
_LATEST = 50_000


async def queue_analytics(desk: Desk, _given: JsonObject) -> JsonObject:
    """How deep the queue is, plugin by plugin, and how long the first in line has waited."""
    counts = await desk.store.counts()
    now = desk.now()
    return {
        "depth": counts.depth,
        "ready": counts.ready,
        "waiting": counts.waiting,
        "running": counts.running,
        "workers": desk.snapshot().max_workers,
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
            for row in await desk.store.depths()
        ],
    }


async def summary(desk: Desk, given: JsonObject) -> JsonObject:
    """How executions ended within a span of time, plugin by plugin."""
    asked = read.optional_duration(given, "span")
    since = desk.now() - (_DEFAULT_SPAN if asked is None else asked)
    tallies = await desk.store.tallies(since=since, latest=_LATEST)
    plugins = dict.fromkeys(tally.plugin for tally in tallies)
    return {
        "since": instant(since),
        "executions": sum(tally.executions for tally in tallies),
        "plugins": [_of_plugin(name, [each for each in tallies if each.plugin == name]) for name in plugins],
    }


def _of_plugin(name: str, tallies: list[Tally]) -> JsonObject:
    executions = sum(tally.executions for tally in tallies)
    succeeded = sum(tally.executions for tally in tallies if tally.status is LogStatus.SUCCEEDED)
    spent = sum((tally.mean * tally.executions for tally in tallies), timedelta())
    return {
        "plugin": name,
        "executions": executions,
        "by_status": {tally.status: tally.executions for tally in tallies},
        "success_ratio": round(succeeded / executions, 4),
        "mean_ms": milliseconds(spent / executions),
        "longest_ms": milliseconds(max(tally.longest for tally in tallies)),
    }
