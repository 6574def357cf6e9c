"""The queue as a whole: how deep it is, what waits for what, and emptying it."""

from __future__ import annotations

from ductile.core.jobs import JobStatus, Reason
from ductile.core.json_values import JsonObject, JsonValue
from ductile.errors import UsageError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.orphans import orphans, shown_at
from ductile.operations.plugin_names import optional_plugin
from ductile.store.values.reading import DEFAULT_PAGE, LARGEST_PAGE, JobFilter


async def queue_status(desk: Desk, _given: JsonObject) -> JsonObject:
    counts = await desk.store.counts()
    return {
        "depth": counts.depth,
        "ready": counts.ready,
        "waiting": counts.waiting,
        "running": counts.running,
        "orphaned": await orphans(desk),
        "workers": desk.snapshot().max_workers,
    }


async def queue_list(desk: Desk, given: JsonObject) -> JsonObject:
    """What runs and what waits, newest first."""
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    plugin = await optional_plugin(desk, given)
    shown: dict[str, JsonValue] = {}
    for status in (JobStatus.RUNNING, JobStatus.QUEUED):
        page = await desk.store.jobs(JobFilter(status=status, plugin=plugin), limit=limit)
        shown[status] = [shown_at(desk, job) for job in page.rows]
    return {"running": shown[JobStatus.RUNNING], "queued": shown[JobStatus.QUEUED]}


async def queue_purge(desk: Desk, given: JsonObject) -> JsonObject:
    """End queued jobs of a plugin, or all of them; they stay in the ledger as dead/purged."""
    plugin = await optional_plugin(desk, given)
    if plugin is None and not read.flag(given, "all"):
        raise UsageError("no plugin was named", hint="Name a plugin, or use --all.")
    if plugin is not None and read.flag(given, "all"):
        raise UsageError("a plugin and --all contradict each other", hint="Name a plugin, or use --all.")
    plugins = None if plugin is None else [plugin]
    if read.flag(given, "dry_run"):
        page = await desk.store.jobs(JobFilter(status=JobStatus.QUEUED, plugin=plugin), limit=LARGEST_PAGE)
        ids: list[JsonValue] = [job.id for job in page.rows]
        return {"purged": 0, "would_purge": ids, "more": page.next_cursor is not None, "dry_run": True}
    purged = 0
    while True:
        moved = await desk.store.end_queued(Reason.PURGED, desk.snapshot().rules, plugins=plugins)
        desk.ended(moved.jobs)
        # With the last of its steps a pipeline run ends too, as failed; nobody purged that.
        purged += sum(job.reason is Reason.PURGED for job in moved.jobs)
        if not moved.more:
            return {"purged": purged}
