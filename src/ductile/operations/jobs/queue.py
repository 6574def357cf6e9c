"""The queue: its depth, its jobs, purging it, and figures of the queue and of executions by plugin."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import UNSET, UnsetType

from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.jobs.statistics import Percentiles
from ductile.errors import UsageError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import ListedJob, listed_job
from ductile.operations.plugins.lookup import refuse_unknown_plugin
from ductile.operations.request import DryRun, NoFields, PageLimit
from ductile.operations.response import (
    Id,
    Response,
    Timestamp,
    WasDryRun,
    from_record,
    milliseconds,
    timestamp,
)
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE, JobFilter
from ductile.struct import Value, about


class QueueDepth(Value):
    depth: int
    ready: int
    waiting: int
    running: int
    orphaned: int
    workers: int


class QueueStatus(QueueDepth, Response):
    pass


async def queue_status(context: OperationContext, _request: NoFields) -> QueueStatus:
    """Return how many jobs wait and run."""
    counts = await context.store.queue_counts()
    orphaned, workers = await context.count_orphaned(), context.snapshot().max_workers
    return from_record(QueueStatus, counts, orphaned=orphaned, workers=workers)


class ListQueue(Value):
    plugin: Annotated[str | None, about("Only jobs of this plugin.")] = None
    limit: PageLimit = DEFAULT_PAGE


class QueuedJobs(Response):
    running: list[ListedJob]
    queued: list[ListedJob]


async def queue_list(context: OperationContext, request: ListQueue) -> QueuedJobs:
    """Return running and queued jobs, newest first."""
    await refuse_unknown_plugin(context, request.plugin)

    async def listed(status: JobStatus) -> list[ListedJob]:
        job_filter = JobFilter(status=status, plugin=request.plugin)
        page = await context.store.list_jobs(job_filter, limit=request.limit)
        return [listed_job(context, job) for job in page.rows]

    return QueuedJobs(running=await listed(JobStatus.RUNNING), queued=await listed(JobStatus.QUEUED))


class PurgeQueue(Value):
    plugin: Annotated[str | None, about("Only jobs of this plugin.")] = None
    all: Annotated[bool, about("Jobs of every plugin.")] = False
    dry_run: DryRun = False


class PurgedQueue(Response):
    purged: int
    would_purge: list[Id] | UnsetType = UNSET
    more: bool | UnsetType = UNSET
    dry_run: WasDryRun = UNSET


async def queue_purge(context: OperationContext, request: PurgeQueue) -> PurgedQueue:
    """End queued jobs of a plugin, or all of them; they stay in the ledger as dead (`purged`)."""
    plugin = request.plugin
    await refuse_unknown_plugin(context, plugin)
    if plugin is None and not request.all:
        raise UsageError("no plugin was named", hint="Name a plugin, or use --all.")
    if plugin is not None and request.all:
        raise UsageError("a plugin and --all contradict each other", hint="Name a plugin, or use --all.")
    if request.dry_run:
        job_filter = JobFilter(status=JobStatus.QUEUED, plugin=plugin)
        page = await context.store.list_jobs(job_filter, limit=LARGEST_PAGE)
        ids, more = [job.id for job in page.rows], page.next_cursor is not None
        return PurgedQueue(purged=0, would_purge=ids, more=more, dry_run=True)
    purged = 0
    while True:
        moved = await context.store.end_queued(
            JobReason.PURGED, context.snapshot().policy, plugins=None if plugin is None else [plugin]
        )
        context.report_ended(moved.jobs)
        # A pipeline run ends with the last of its steps, as failed: it is not counted as purged.
        purged += sum(job.reason is JobReason.PURGED for job in moved.jobs)
        if not moved.more:
            return PurgedQueue(purged=purged)


_DEFAULT_SPAN = timedelta(hours=24)
#: The most executions that are counted, however long the span is.
MAX_EXECUTIONS = 50_000


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
    """Return how many jobs wait and run, plugin by plugin, and how long the oldest ready job has waited."""
    counts = await context.store.queue_counts()
    now = context.now()
    plugins = []
    for row in await context.store.queue_depths():
        waited = None if row.oldest_ready_at is None else now - row.oldest_ready_at
        plugins.append(from_record(PluginQueue, row, oldest_wait_ms=milliseconds(waited)))
    return from_record(QueueFigures, counts, workers=context.snapshot().max_workers, plugins=plugins)


class SummariseExecutions(Value):
    span: Annotated[timedelta | None, about("How far to look back, such as `24h`.")] = None


class TimePercentiles(Value):
    """Percentiles in milliseconds: 50, 95 and 99 of a hundred took no longer."""

    p50: float
    p95: float
    p99: float


class PluginFigures(Value):
    plugin: str
    executions: int
    by_status: dict[LogStatus, int]
    success_ratio: float
    mean_ms: float
    longest_ms: float
    failures: Annotated[int, about("Executions that failed or timed out.")]
    timeouts: int
    retries: Annotated[int, about("Executions that were not the first attempt.")]
    run_ms: Annotated[TimePercentiles | None, about("How long the processes ran.")]
    wait_ms: Annotated[TimePercentiles | None, about("From the submission of a job to its first start.")]
    stderr_bytes: int


class RunFigures(Response):
    since: Timestamp
    executions: int
    complete: Annotated[bool, about("Whether all were counted, and not only the latest 50,000.")]
    plugins: list[PluginFigures]


async def execution_figures(context: OperationContext, request: SummariseExecutions) -> RunFigures:
    """Return how executions ended within a span of time, plugin by plugin."""
    span = _DEFAULT_SPAN if request.span is None else request.span
    return await figures_since(context, context.now() - span)


class PluginStats(Value):
    plugin: Annotated[str | None, about("Only this plugin.")] = None
    since: Annotated[
        datetime | None, about("Executions that ended since, such as 24h (the default) or 2026-02-08.")
    ] = None


async def plugin_figures(context: OperationContext, request: PluginStats) -> RunFigures:
    """Executions, failures, retries, times and stderr, plugin by plugin. Raises `NotFoundError`."""
    await refuse_unknown_plugin(context, request.plugin)
    since = context.now() - _DEFAULT_SPAN if request.since is None else request.since
    return await figures_since(context, since, request.plugin)


async def figures_since(context: OperationContext, since: datetime, plugin: str | None = None) -> RunFigures:
    """Return figures of the executions that ended since an instant, of all plugins or one."""
    statistics = await context.store.execution_statistics(since=since, latest=MAX_EXECUTIONS, plugin=plugin)
    return RunFigures(
        since=timestamp(since),
        executions=sum(row.executions for row in statistics.plugins),
        complete=statistics.complete,
        plugins=[
            from_record(
                PluginFigures,
                row,
                by_status=dict(row.by_status),
                success_ratio=round(row.by_status.get(LogStatus.SUCCEEDED, 0) / row.executions, 4),
                mean_ms=milliseconds(row.mean or timedelta(0)),
                longest_ms=milliseconds(row.longest or timedelta(0)),
                run_ms=time_percentiles(row.run_time),
                wait_ms=time_percentiles(row.wait),
            )
            for row in statistics.plugins
        ],
    )


def time_percentiles(times: Percentiles | None) -> TimePercentiles | None:
    """Return the percentiles in milliseconds."""
    if times is None:
        return None
    return TimePercentiles(
        p50=milliseconds(times.p50), p95=milliseconds(times.p95), p99=milliseconds(times.p99)
    )
