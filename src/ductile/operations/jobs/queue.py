"""The queue as a whole: how deep it is, what runs and waits, ending it."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ductile.core.jobs.model import JobReason, JobStatus
from ductile.errors import UsageError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import ListedJob, listed_job
from ductile.operations.jobs.orphaned import count_orphaned
from ductile.operations.plugins.names import refuse_unknown_plugin
from ductile.operations.request import DryRun, NoFields, PageLimit
from ductile.operations.response import Id, Response, WasDryRun
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE, JobFilter
from ductile.struct import Value


class QueueStatus(Response):
    depth: int
    ready: int
    waiting: int
    running: int
    orphaned: int
    workers: int


async def queue_status(context: OperationContext, _request: NoFields) -> QueueStatus:
    counts = await context.store.counts()
    return QueueStatus(
        depth=counts.depth,
        ready=counts.ready,
        waiting=counts.waiting,
        running=counts.running,
        orphaned=await count_orphaned(context),
        workers=context.snapshot().max_workers,
    )


class ListQueue(Value):
    plugin: Annotated[str | None, Meta(description="Of this plugin.")] = None
    limit: PageLimit = DEFAULT_PAGE


class QueuedJobs(Response):
    running: list[ListedJob]
    queued: list[ListedJob]


async def queue_list(context: OperationContext, request: ListQueue) -> QueuedJobs:
    """Running and queued jobs, newest first."""
    await refuse_unknown_plugin(context, request.plugin)

    async def listed(status: JobStatus) -> list[ListedJob]:
        where = JobFilter(status=status, plugin=request.plugin)
        page = await context.store.jobs(where, limit=request.limit)
        return [listed_job(context, job) for job in page.rows]

    return QueuedJobs(running=await listed(JobStatus.RUNNING), queued=await listed(JobStatus.QUEUED))


class PurgeQueue(Value):
    plugin: Annotated[str | None, Meta(description="Of this plugin.")] = None
    all: Annotated[bool, Meta(description="Of all plugins.")] = False
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
        where = JobFilter(status=JobStatus.QUEUED, plugin=plugin)
        page = await context.store.jobs(where, limit=LARGEST_PAGE)
        return PurgedQueue(
            purged=0,
            would_purge=[job.id for job in page.rows],
            more=page.next_cursor is not None,
            dry_run=True,
        )
    purged = 0
    while True:
        moved = await context.store.end_queued(
            JobReason.PURGED, context.snapshot().rules, plugins=None if plugin is None else [plugin]
        )
        context.report_ended(moved.jobs)
        # With the last of its steps a pipeline run ends too, as failed: it was not purged.
        purged += sum(job.reason is JobReason.PURGED for job in moved.jobs)
        if not moved.more:
            return PurgedQueue(purged=purged)
