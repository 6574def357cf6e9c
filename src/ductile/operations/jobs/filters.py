"""Filters of jobs, shared by the list of jobs and by changes of many jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError, UsageError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.log import index_pending_logs
from ductile.operations.plugins.lookup import refuse_unknown_plugin
from ductile.store.model.records import JobFilter
from ductile.struct import Value, about

#: Words of other systems for the same states, accepted by filters.
STATUS_ALIASES = {
    "pending": JobStatus.QUEUED,
    "completed": JobStatus.SUCCEEDED,
    "ok": JobStatus.SUCCEEDED,
    "error": JobStatus.FAILED,
}


class JobFilters(Value):
    """A job matches if every filter that is set applies to it."""

    plugin: Annotated[str | None, about("Only jobs of this plugin.")] = None
    command: Annotated[str | None, about("Only jobs of this command.")] = None
    status: Annotated[
        JobStatus | None, Meta(description="Only jobs in this state.", extra={"aliases": STATUS_ALIASES})
    ] = None
    reason: Annotated[JobReason | None, about("Only jobs with this reason, such as attempts_exhausted.")] = (
        None
    )
    pipeline: Annotated[str | None, about("Only runs of this pipeline.")] = None
    query: Annotated[str | None, about("Only jobs whose result, error or stderr has all of these words.")] = (
        None
    )
    since: Annotated[
        datetime | None,
        about("Created at or after this time, such as 2026-02-08T10:00:00Z, 2026-02-08 or 1h."),
    ] = None
    until: Annotated[datetime | None, about("Created before this time.")] = None


def active_filters(request: Value, filters: type[Value]) -> list[str]:
    """Return the names of the filters that are set in a request.

    `filters` is the struct that declares them.
    """
    return [name for name in filters.__struct_fields__ if getattr(request, name) is not None]


async def resolve_filters(context: OperationContext, request: JobFilters) -> JobFilter:
    """Return the filter for the store. The latest executions are indexed first if words are searched for.

    Raises `NotFoundError` for a plugin or pipeline that is unknown and has no jobs, and `UsageError` for
    filters that exclude each other.
    """
    if request.pipeline is not None and not {request.plugin, request.command} <= {None, RUN_PLUGIN}:
        raise UsageError(
            "a filter by pipeline means its runs, which have no other plugin or command",
            hint="Leave out the plugin and the command; for the steps of one run there is --run.",
        )
    await refuse_unknown_plugin(context, request.plugin)
    await refuse_unknown_pipeline(context, request.pipeline)
    if request.query is not None:
        await index_pending_logs(context)
    if request.since is not None and request.until is not None and request.until < request.since:
        raise UsageError("until is before since", hint="since is the earlier of the two times.")
    return JobFilter(
        plugin=request.plugin if request.pipeline is None else RUN_PLUGIN,
        command=request.command if request.pipeline is None else request.pipeline,
        status=request.status,
        reason=request.reason,
        query=request.query,
        created_from=request.since,
        created_before=request.until,
    )


async def refuse_unknown_pipeline(context: OperationContext, pipeline: str | None) -> None:
    """Raise `NotFoundError` for a pipeline that is not configured and has no runs."""
    known = context.snapshot().pipelines
    if pipeline is None or pipeline in known:
        return
    job_filter = JobFilter(plugin=RUN_PLUGIN, command=pipeline)
    if not (await context.store.list_jobs(job_filter, limit=1)).rows:
        hint = did_you_mean(pipeline, known) or "See `ductile pipeline list`."
        raise NotFoundError(f"there is no pipeline {pipeline}", hint=hint)
