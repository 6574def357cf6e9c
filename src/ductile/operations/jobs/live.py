"""Following a job while it runs: its output as it is printed, and its executions as they end."""

from __future__ import annotations

from typing import Annotated

from ductile.core.jobs.model import TERMINAL
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import (
    ListedJob,
    LiveOutputText,
    LoggedExecution,
    listed_job,
    live_output_text,
    logged_execution,
)
from ductile.operations.jobs.log import FollowTimeout, follow
from ductile.operations.jobs.lookup import OneJob, find_job, resolve_job
from ductile.operations.response import Response
from ductile.struct import about


class FollowJob(OneJob):
    timeout: FollowTimeout = None
    after: Annotated[
        int | None, about("Output after this `position`; without it, what is kept of running executions.")
    ] = None
    executions: Annotated[int, about("Ended executions after this number.")] = 0


class JobProgress(Response):
    job: ListedJob
    output: Annotated[
        list[LiveOutputText], about("What the job, or the steps of the run, printed, in the order it came.")
    ]
    position: int
    executions: Annotated[list[LoggedExecution], about("Executions of the job that have ended.")]
    ended: Annotated[bool, about("Whether the job has ended.")]
    stopping: Annotated[bool, about("Whether the daemon stops.")]


async def follow_job(context: OperationContext, request: FollowJob) -> JobProgress:
    """Return new output and newly ended executions of a job.

    Waits until there are any, or the job has ended.
    """
    live = context.require_engine().live_output
    job_id = (await resolve_job(context, request.job_id)).id

    async def read_new(must_respond: bool, stopping: bool) -> JobProgress | None:
        # Read before the output, which is complete when the end of its execution is stored.
        job = await find_job(context, job_id)
        ended = job.status in TERMINAL
        rows = await context.store.list_executions(job_id) if ended or job.execution else ()
        executions = [logged_execution(row) for row in rows if row.execution > request.executions]
        read = live.read(job_id, request.after)
        if not (read.pieces or executions or ended or must_respond):
            return None
        return JobProgress(
            job=listed_job(context, job),
            output=[live_output_text(piece) for piece in read.pieces],
            position=read.position,
            executions=executions,
            ended=ended,
            stopping=stopping,
        )

    return await follow(context, request.timeout, read_new, lambda changed: live.following(job_id, changed))
