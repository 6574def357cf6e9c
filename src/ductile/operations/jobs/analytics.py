"""Figures of the queue and of executions, plugin by plugin."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from ductile.core.jobs.settlement import LogStatus
from ductile.operations.context import OperationContext
from ductile.operations.request import NoFields
from ductile.operations.response import Response, Timestamp, milliseconds, timestamp
from ductile.store.model.records import ExecutionStats
from ductile.struct import Value

_DEFAULT_SPAN = timedelta(hours=24)
#: At most so many executions are counted, however long the span.
_MAX_EXECUTIONS = 50_000


class PluginQueue(Value):
    plugin: str
    ready: int
    waiting: int
    running: int
    oldest_ready_at: Timestamp | None
    oldest_wait_ms: float | None


class QueueFigures(Response):
    depth: int
    ready: int
    waiting: int
    running: int
    workers: int
    plugins: list[PluginQueue]


async def queue_figures(context: OperationContext, _request: NoFields) -> QueueFigures:
    """How deep the queue is, plugin by plugin, and how long the oldest ready job has waited."""
    counts = await context.store.counts()
    now = context.now()
    return QueueFigures(
        depth=counts.depth,
        ready=counts.ready,
        waiting=counts.waiting,
        running=counts.running,
        workers=context.snapshot().max_workers,
        plugins=[
            PluginQueue(
                plugin=row.plugin,
                ready=row.ready,
                waiting=row.waiting,
                running=row.running,
                oldest_ready_at=timestamp(row.oldest_ready_at),
                oldest_wait_ms=milliseconds(
                    None if row.oldest_ready_at is None else now - row.oldest_ready_at
                ),
            )
            for row in await context.store.queue_depths()
        ],
    )


class SummariseRuns(Value):
    span: Annotated[timedelta | None, Meta(description="How far to look back, such as `24h`.")] = None


class PluginFigures(Value):
    plugin: str
    executions: int
    by_status: dict[LogStatus, int]
    success_ratio: float
    mean_ms: float
    longest_ms: float


class RunFigures(Response):
    since: Timestamp
    executions: int
    plugins: list[PluginFigures]


async def run_figures(context: OperationContext, request: SummariseRuns) -> RunFigures:
    """How executions ended within a span of time, plugin by plugin."""
    since = context.now() - (_DEFAULT_SPAN if request.span is None else request.span)
    stats = await context.store.execution_stats(since=since, latest=_MAX_EXECUTIONS)
    plugins = dict.fromkeys(each.plugin for each in stats)
    return RunFigures(
        since=timestamp(since),
        executions=sum(each.executions for each in stats),
        plugins=[_plugin_figures(name, [each for each in stats if each.plugin == name]) for name in plugins],
    )


def _plugin_figures(name: str, stats: list[ExecutionStats]) -> PluginFigures:
    executions = sum(each.executions for each in stats)
    succeeded = sum(each.executions for each in stats if each.status is LogStatus.SUCCEEDED)
    total = sum((each.mean * each.executions for each in stats), timedelta())
    return PluginFigures(
        plugin=name,
        executions=executions,
        by_status={each.status: each.executions for each in stats},
        success_ratio=round(succeeded / executions, 4),
        mean_ms=milliseconds(total / executions),
        longest_ms=milliseconds(max(each.longest for each in stats)),
    )
