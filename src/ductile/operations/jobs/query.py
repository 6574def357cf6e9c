"""Reading jobs: list, show, tree, logs, wait, and opening their artifacts."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from ductile.config.secrets import redact
from ductile.core.jobs.model import TERMINAL, Job, SubmittedBy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.engine.artifact_files import open_artifact_file
from ductile.errors import NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.explain_run import StepReport, describe_steps
from ductile.operations.jobs.documents import (
    FLATTENED_NOTE,
    Execution,
    JobOutput,
    JobRow,
    JobTransition,
    ListedJob,
    LoggedExecution,
    job_output,
    job_row,
    job_transition,
    job_values,
    listed_execution,
    logged_execution,
    nest_jobs,
)
from ductile.operations.jobs.filters import JobFilters, resolve_filters
from ductile.operations.jobs.lookup import OneJob, find_job, resolve_filter, resolve_job
from ductile.operations.request import Cursor, PageLimit
from ductile.operations.response import Id, NextCursor, Response, from_record
from ductile.store.model.records import DEFAULT_PAGE, JobSort, ShortPayload
from ductile.struct import Value, about, field, replace

MAX_WAIT = timedelta(hours=24)
#: The most characters of a payload in a list.
_EXCERPT_LENGTH = 200
#: Longer payloads are not read for a list.
_MAX_PARSED_PAYLOAD = 64 * 1024
#: The most jobs in one tree: the whole response is in memory at once.
MAX_TREE_JOBS = 10_000
_UNKNOWN_MEDIA_TYPE = "application/octet-stream"
_MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[A-Za-z0-9_-]+=[A-Za-z0-9_.+-]+)*", re.ASCII
)


class ListJobs(JobFilters):
    job_id: Annotated[str | None, about("Only this job.")] = None
    submitted_by: Annotated[SubmittedBy | None, about("Only jobs submitted by this source.")] = None
    created_from: Annotated[datetime | None, about("The same as `since`.")] = field(name="from", default=None)
    created_before: Annotated[datetime | None, about("The same as `until`.")] = field(name="to", default=None)
    parent_job_id: Annotated[str | None, about("Only jobs started by this job.")] = field(
        name="parent", default=None
    )
    run_id: Annotated[str | None, about("Only steps of this pipeline run.")] = field(name="run", default=None)
    sort: Annotated[
        JobSort,
        about(
            "Newest first, or those that ran longest, among the newest 10,000 that match. "
            "A running job counts up to now."
        ),
    ] = JobSort.CREATED
    payload: Annotated[
        bool, about("With the beginning of each payload; values under keys that look secret are masked.")
    ] = False
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None


class JobPage(Response):
    jobs: list[JobRow]
    next_cursor: NextCursor


async def list_jobs(context: OperationContext, request: ListJobs) -> JobPage:
    """Return a page of jobs. Raises `NotFoundError` for a plugin that is unknown and has none."""
    since, until = request.since or request.created_from, request.until or request.created_before
    job_filter = replace(
        await resolve_filters(context, replace(request, since=since, until=until)),
        job_id=await resolve_filter(context, request.job_id),
        submitted_by=request.submitted_by,
        parent_job_id=await resolve_filter(context, request.parent_job_id),
        run_id=await resolve_filter(context, request.run_id, run=True),
    )
    page = await context.store.list_jobs(
        job_filter, limit=request.limit, cursor=request.cursor, sort=request.sort
    )
    excerpts: Mapping[str, str] = {}
    if request.payload:
        ids = [job.id for job in page.rows]
        payloads = await context.store.short_payloads(ids, max_length=_MAX_PARSED_PAYLOAD)
        excerpts = {job_id: payload_excerpt(payload) for job_id, payload in payloads.items()}
    jobs = [job_row(context, job, excerpts.get(job.id, UNSET)) for job in page.rows]
    return JobPage(jobs=jobs, next_cursor=page.next_cursor)


def payload_excerpt(payload: ShortPayload) -> str:
    """Return the beginning of a payload as JSON, secrets masked; of one that is too long, only the size."""
    if payload.payload is None:
        return f"({payload.length} characters)"
    text = msgspec.json.encode(redact(payload.payload)).decode()
    return text if len(text) <= _EXCERPT_LENGTH else f"{text[: _EXCERPT_LENGTH - 1]}…"


class ResultOnly(StrEnum):
    ONLY = "only"


class ShowJob(OneJob):
    result: Annotated[ResultOnly | None, about("`only`: answer with the `result` and nothing else.")] = None


class FullJob(ListedJob, Response, kw_only=True):
    """A job with its payload, result and history."""

    payload: dict[str, Any] | None
    result: Annotated[JobOutput | None, about("Null if it has not run, or nothing of it did.")]
    stderr: Annotated[str | None, about("Of its last execution.")]
    executions: list[Execution]
    transitions: list[JobTransition]
    steps: Annotated[tuple[StepReport, ...] | UnsetType, about("Of a run of a pipeline.")] = UNSET

    @property
    def http_message(self) -> str:
        text = f"{self.plugin} {self.command}: {self.status} ({self.reason})"
        return f"{text}: {self.last_error}" if self.last_error else text


async def show_job(context: OperationContext, request: ShowJob) -> FullJob:
    """Return a job with its payload, result and history; a pipeline run also with all of its steps."""
    job = await resolve_job(context, request.job_id)
    run = await context.store.get_run(job.id) if job.plugin == RUN_PLUGIN else None
    return await _full_job(context, job, steps=UNSET if run is None else describe_steps(run))


async def _full_job(
    context: OperationContext, job: Job, steps: tuple[StepReport, ...] | UnsetType = UNSET
) -> FullJob:
    """Return a job with its payload, the result of its last execution, and its history."""
    executions = await context.store.list_executions(job.id)
    transitions = await context.store.list_transitions(job.id)
    return from_record(
        FullJob,
        job,
        **job_values(context, job),
        result=job_output(job, executions[-1]) if executions else None,
        stderr=executions[-1].stderr if executions else None,
        executions=[listed_execution(row) for row in executions],
        transitions=[job_transition(row) for row in transitions],
        steps=steps,
    )


class JobNode(ListedJob, kw_only=True):
    children: Annotated[list[JobNode], about(f"What it led to. {FLATTENED_NOTE}")]


class JobTree(Response):
    tree: JobNode
    truncated: Annotated[
        bool, about("Whether there are more than 10,000 jobs in it: the newest are left out.")
    ]


async def job_tree(context: OperationContext, request: OneJob) -> JobTree:
    """Return the job and all jobs that follow from it, nested."""
    root = await resolve_job(context, request.job_id)
    jobs = await context.store.job_tree(root.id, limit=MAX_TREE_JOBS + 1)
    below: dict[str, list[Job]] = {}
    for job in jobs[:MAX_TREE_JOBS]:
        if job.parent_job_id is not None and job.id != root.id:
            below.setdefault(job.parent_job_id, []).append(job)

    def node(job: Job, children: list[JobNode], _flattened: bool) -> JobNode:
        return from_record(JobNode, job, **job_values(context, job), children=children)

    (tree,) = nest_jobs((root,), below, node)
    return JobTree(tree=tree, truncated=len(jobs) > MAX_TREE_JOBS)


class JobLog(Response):
    job_id: Id
    executions: list[LoggedExecution]


async def job_logs(context: OperationContext, request: OneJob) -> JobLog:
    """Return the executions of a job with their output."""
    job = await resolve_job(context, request.job_id)
    executions = await context.store.list_executions(job.id)
    return JobLog(job_id=job.id, executions=[logged_execution(row) for row in executions])


class WaitForJob(OneJob):
    timeout: Annotated[timedelta | None, about("How long to wait, such as 5m.")] = None


async def wait_for_job(context: OperationContext, request: WaitForJob) -> FullJob:
    """Return the job when it has ended, or as it is when the time is up or the daemon stops."""
    timeout = MAX_WAIT if request.timeout is None else request.timeout
    job = await resolve_job(context, request.job_id)
    if job.status not in TERMINAL:
        with context.require_engine().waiters.waiting_for(job.id) as ended:
            # Read after registering, or an end in between would be missed.
            if (await find_job(context, job.id)).status not in TERMINAL:
                await asyncio.wait({ended}, timeout=timeout.total_seconds())
        job = await find_job(context, job.id)
    return await _full_job(context, job)


class OpenedArtifact(Value):
    """A file that is open for reading. The caller closes `descriptor`."""

    name: str
    descriptor: int
    size: int
    media_type: str


class OpenArtifact(OneJob, kw_only=True):
    name: Annotated[str, about("The artifact's name.")]


async def open_artifact(context: OperationContext, request: OpenArtifact) -> OpenedArtifact:
    """Open the file of an artifact. Raises `NotFoundError`, also outside of the configured roots."""
    job = await resolve_job(context, request.job_id)
    name = request.name
    artifacts = [artifact for artifact in job.artifacts if isinstance(artifact, dict)]
    artifact = next((artifact for artifact in artifacts if artifact.get("name") == name), None)
    if artifact is None:
        names = ", ".join(str(artifact.get("name")) for artifact in artifacts)
        raise NotFoundError(f"the job has no artifact {name}", hint=f"It has {names}." if names else None)
    path = artifact.get("path")
    if not isinstance(path, str):
        raise NotFoundError(
            f"the artifact {name} is not a file here",
            hint="It has a url.",
            details={"url": artifact.get("url")},
        )
    descriptor = open_artifact_file(path, context.snapshot().artifact_roots)
    media_type = artifact.get("media_type")
    if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type):  # not valid in a header
        media_type = mimetypes.guess_type(path)[0] or _UNKNOWN_MEDIA_TYPE
    size = os.fstat(descriptor).st_size
    return OpenedArtifact(name=Path(path).name, descriptor=descriptor, size=size, media_type=media_type)
