"""The queue as a whole: how deep it is, what waits for what, and emptying it."""

from __future__ import annotations

from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.errors import UsageError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import listed_job
from ductile.operations.jobs.orphaned import count_orphaned
from ductile.operations.plugins.names import known_plugin_filter
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE, JobFilter
from ductile.struct import to_builtins


async def queue_status(context: OperationContext, _given: JsonObject) -> JsonObject:
    counts = await context.store.counts()
    return {
        "depth": counts.depth,
        "ready": counts.ready,
        "waiting": counts.waiting,
        "running": counts.running,
        "orphaned": await count_orphaned(context),
        "workers": context.snapshot().max_workers,
    }


async def queue_list(context: OperationContext, given: JsonObject) -> JsonObject:
    """What runs and what waits, newest first."""
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    plugin = await known_plugin_filter(context, given)
    shown: dict[str, JsonValue] = {}
    for status in (JobStatus.RUNNING, JobStatus.QUEUED):
        page = await context.store.jobs(JobFilter(status=status, plugin=plugin), limit=limit)
        shown[status] = [to_builtins(listed_job(context, job)) for job in page.rows]
    return {"running": shown[JobStatus.RUNNING], "queued": shown[JobStatus.QUEUED]}


async def queue_purge(context: OperationContext, given: JsonObject) -> JsonObject:
    """End queued jobs of a plugin, or all of them; they stay in the ledger as dead/purged."""
    plugin = await known_plugin_filter(context, given)
    if plugin is None and not read.flag(given, "all"):
        raise UsageError("no plugin was named", hint="Name a plugin, or use --all.")
    if plugin is not None and read.flag(given, "all"):
        raise UsageError("a plugin and --all contradict each other", hint="Name a plugin, or use --all.")
    plugins = None if plugin is None else [plugin]
    if read.flag(given, "dry_run"):
        page = await context.store.jobs(JobFilter(status=JobStatus.QUEUED, plugin=plugin), limit=LARGEST_PAGE)
        ids: list[JsonValue] = [job.id for job in page.rows]
        return {"purged": 0, "would_purge": ids, "more": page.next_cursor is not None, "dry_run": True}
    purged = 0
    while True:
        moved = await context.store.end_queued(JobReason.PURGED, context.snapshot().rules, plugins=plugins)
        context.report_ended(moved.jobs)
        # With the last of its steps a pipeline run ends too, as failed; nobody purged that.
        purged += sum(job.reason is JobReason.PURGED for job in moved.jobs)
        if not moved.more:
            return {"purged": purged}
