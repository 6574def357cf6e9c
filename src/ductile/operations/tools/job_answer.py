"""The answer of a tool that starts or awaits a job: its result if it has ended, else how to ask again."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from ductile.core.jobs.model import TERMINAL, JobReason, JobStatus
from ductile.core.json import JsonValue
from ductile.operations.context import OperationContext
from ductile.operations.jobs.query import FullJob, WaitForJob, wait_for_job
from ductile.operations.request import bad_value, decode_duration
from ductile.operations.response import Id, Response
from ductile.operations.tools.progress import WaitProgress, step_progress, wait_for_progress
from ductile.operations.tools.task import JobTask, job_task
from ductile.struct import Value, about

DEFAULT_WAIT = timedelta(seconds=20)
MAX_WAIT = timedelta(minutes=10)


class JobAnswer(Response):
    job_id: Id
    plugin: Annotated[str, about("`pipeline` for the run of a pipeline.")]
    command: Annotated[str, about("The pipeline's name, if it is a run.")]
    status: JobStatus
    reason: JobReason
    ended: Annotated[bool, about("Whether it has ended. If not, its outcome is not known yet.")]
    next: Annotated[list[str], about("Tools that tell more.")]
    progress: Annotated[str | UnsetType, about("Of a run that has not ended: how far its steps are.")] = UNSET
    result: Annotated[Any | UnsetType, about("What the plugin or the last step answered.")] = UNSET
    error: Annotated[str | UnsetType | None, about("The last error, if it did not succeed.")] = UNSET
    stderr: Annotated[str | UnsetType | None, about("What it printed on stderr, if it did not succeed.")] = (
        UNSET
    )
    deduplicated: Annotated[
        bool | UnsetType, about("True if the job existed already, and the call started nothing.")
    ] = UNSET


def decode_wait(value: JsonValue) -> timedelta:
    """Return how long a call waits. Raises `UsageError` for a text that is no duration, or a longer one."""
    if value is None:
        return DEFAULT_WAIT
    span = decode_duration("wait", value)
    if not timedelta() <= span <= MAX_WAIT:
        raise bad_value("wait", "wait has to be a duration up to 10m", "Ask again with job_wait after that.")
    return span


class WaitOptions(Value):
    """How long a caller waits for a job, and which progress ends the wait."""

    wait: timedelta
    #: The answer is returned as soon as the progress is more than this; if None, only at the end of the job.
    progress_after: int | None = None


class AwaitedJob(Value):
    """The job as it was when the wait ended, and the answer about it."""

    job: FullJob
    answer: JobAnswer
    #: Set if the caller requested progress, and has time left.
    progress: WaitProgress | None

    def as_task(self, context: OperationContext) -> JobTask:
        """Return the job as a task of the Model Context Protocol."""
        service = context.snapshot().service
        return job_task(
            self.job,
            progress=self.answer.progress or None,
            retention=min(service.job_queue_retention, service.job_log_retention),
            now=context.now(),
        )


async def wait_and_answer(
    context: OperationContext, job_id: str, waiting: WaitOptions, *, deduplicated: bool = False
) -> AwaitedJob:
    """Wait until the job has ended, has the progress that the caller waits for, or the time is up."""
    progress = None
    if waiting.progress_after is None:
        job = await wait_for_job(context, WaitForJob(job_id=job_id, timeout=waiting.wait))
    else:
        job, progress = await wait_for_progress(context, job_id, waiting.wait, waiting.progress_after)
    ended, succeeded = job.status in TERMINAL, job.status is JobStatus.SUCCEEDED
    next_tools = [f"job_show job_id={job.job_id}"]
    if not ended:
        next_tools = [f"job_wait job_id={job.job_id}", f"job_cancel job_id={job.job_id}"]
    elif not succeeded:
        next_tools = [f"job_explain job_id={job.job_id}"]
    answer = JobAnswer(
        job_id=job.job_id,
        plugin=job.plugin,
        command=job.command,
        status=job.status,
        reason=job.reason,
        ended=ended,
        next=next_tools,
        progress=UNSET if ended else (await step_progress(context, job)).text or UNSET,
        result=job.result.get("result") if ended and job.result is not None else UNSET,
        error=UNSET if succeeded else job.last_error,
        stderr=UNSET if succeeded or not ended else job.stderr or None,
        deduplicated=deduplicated or UNSET,
    )
    return AwaitedJob(job=job, answer=answer, progress=progress)
