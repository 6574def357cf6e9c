"""The responses of synchronous runs: the result, and the steps that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from ductile.core.jobs.model import Job, JobReason, JobStatus
from ductile.operations.jobs.documents import (
    FLATTENED_NOTE,
    Artifact,
    JobOutput,
    StoredResponse,
    job_output,
    nest_jobs,
    plugin_response,
)
from ductile.operations.response import Id, Response, from_record, milliseconds
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.records import JobDetails, LogRow
from ductile.struct import Value, about


class SyncWait(Value):
    """The wait of a caller for a run: its timeout, and what follows when the time is up."""

    timeout: timedelta
    until: datetime
    return_partial: bool = False
    cancel_on_timeout: bool = False

    def has_ended_by_deadline(self, job: Job) -> bool:
        """Return whether the deadline ended the run.

        The engine cancels at the instant at which the caller gives up, and may do so before the caller reads
        the job: the response is the same either way.
        """
        late = job.completed_at is not None and job.completed_at >= self.until
        return self.cancel_on_timeout and late and job.reason is JobReason.CANCELLED


class RunStepFields(Value):
    job_id: Id
    plugin: str
    command: str
    step_id: str | None
    status: JobStatus
    error: str | None
    exit_code: int | None
    duration_ms: float | None
    result: StoredResponse | None
    output_files: list[Artifact]


class RunStep(RunStepFields, kw_only=True):
    children: Annotated[list[RunStep], about(f"The steps that it led to. {FLATTENED_NOTE}")]
    parent_job_id: Annotated[
        Id | UnsetType | None, about("Only of a step in the list of the one before.")
    ] = UNSET


class FlatRunStep(RunStepFields):
    parent_job_id: Id | None


class Finished(Response):
    """The run has ended."""

    STATUS = 200

    job_id: Id
    status: Annotated[
        Literal["succeeded", "failed", "partial_success"],
        about("`partial_success`: some branches of a split failed, others succeeded."),
    ]
    ok: Annotated[bool, about("Whether it succeeded.")]
    execution_mode: ExecutionMode
    deduplicated: Annotated[bool, about("Whether the run existed already.")]
    duration_ms: float | None
    result: Annotated[JobOutput | None, about("Null if nothing ran.")]
    children: Annotated[list[RunStep], about("The steps that ran, each below the one that led to it.")]
    tree: Annotated[list[FlatRunStep], about("The same steps as a list, as they were created.")]
    message: str
    error: str | UnsetType = UNSET


class StillRunning(Response):
    """The run goes on; GET /job/{job_id} tells what becomes of it. With `return_on_timeout: partial` the
    steps that are done come with it.
    """

    STATUS = 202

    job_id: Id
    status: JobStatus
    execution_mode: ExecutionMode
    deduplicated: Annotated[bool, about("Whether the run existed already.")]
    timeout_exceeded: Annotated[bool, about("False only if the daemon stopped before the time was up.")]
    timeout_ms: int
    elapsed_ms: int
    message: str
    children: list[RunStep] | UnsetType = UNSET
    tree: list[FlatRunStep] | UnsetType = UNSET


def finished_response(details: JobDetails, *, duplicate: bool) -> Finished:
    """Return the response for a job or run that has ended."""
    job, execution = details.job, details.executions.get(details.job.id)
    status: Literal["succeeded", "failed", "partial_success"] = "failed"
    if job.status is JobStatus.SUCCEEDED:
        status = "succeeded"
    elif job.reason is JobReason.PARTIAL_SUCCESS:
        status = "partial_success"
    lasted = None if job.completed_at is None else job.completed_at - job.created_at
    # The plugin of a run is `pipeline`.
    message = f"{job.plugin} {job.command}: {status}"
    children, tree = _steps(job, details.steps, details.executions)
    return Finished(
        job_id=job.id,
        status=status,
        ok=job.status is JobStatus.SUCCEEDED,
        execution_mode=ExecutionMode.SYNCHRONOUS,
        deduplicated=duplicate,
        duration_ms=milliseconds(lasted),
        result=None if execution is None else job_output(job, execution),
        children=children,
        tree=tree,
        message=_message(message if job.last_error is None else f"{message}: {job.last_error}", duplicate),
        error=UNSET if job.last_error is None else job.last_error,
    )


def still_running_response(
    details: JobDetails, wait: SyncWait, *, elapsed: timedelta, stopping: bool, duplicate: bool
) -> StillRunning:
    """Return the response if the time was up before the end, or the daemon is stopping."""
    job, executions = details.job, details.executions
    # Only a stop ends the wait early. Without one, a shorter elapsed time means that the clock was set back.
    exceeded = elapsed >= wait.timeout or not stopping
    seconds = f"{wait.timeout.total_seconds():g} s"
    if not exceeded:
        message = "The daemon is stopping; the run goes on when it is started again."
    elif wait.cancel_on_timeout:
        message = f"The run was not done after {seconds} and is being cancelled."
    else:
        message = f"The run goes on after {seconds}. Ask for GET /job/{job.id}."
    children: list[RunStep] | UnsetType = UNSET
    tree: list[FlatRunStep] | UnsetType = UNSET
    if wait.return_partial:
        executed = [member for member in details.steps if member.id in executions]
        children, tree = _steps(job, executed, executions)
    return StillRunning(
        job_id=job.id,
        status=JobStatus.RUNNING,
        execution_mode=ExecutionMode.SYNCHRONOUS,
        deduplicated=duplicate,
        timeout_exceeded=exceeded,
        timeout_ms=round(wait.timeout.total_seconds() * 1000),
        elapsed_ms=round(elapsed.total_seconds() * 1000),
        message=_message(message, duplicate),
        children=children,
        tree=tree,
    )


def _message(text: str, duplicate: bool) -> str:
    return f"This is a duplicate. {text}" if duplicate else text


def _steps(
    job: Job, members: Sequence[Job], executions: Mapping[str, LogRow]
) -> tuple[list[RunStep], list[FlatRunStep]]:
    """Return the steps nested below each other, and the same steps as a list."""
    below: dict[str, list[Job]] = {}
    member_ids = {member.id for member in members}
    for member in members:
        parent = member.parent_job_id
        below.setdefault(parent if parent is not None and parent in member_ids else job.id, []).append(member)

    def fields(member: Job) -> dict[str, Any]:
        row = executions.get(member.id)
        return {
            "job_id": member.id,
            "step_id": member.step_path,
            "error": member.last_error,
            "exit_code": None if row is None else row.exit_code,
            "duration_ms": None if row is None else milliseconds(row.duration),
            "result": None if row is None else plugin_response(row),
            "output_files": list(member.artifacts),
        }

    def node(member: Job, children: list[RunStep], flattened: bool) -> RunStep:
        parent = member.parent_job_id if flattened else UNSET
        return from_record(RunStep, member, **fields(member), children=children, parent_job_id=parent)

    tree = [from_record(FlatRunStep, member, **fields(member)) for member in members]
    return nest_jobs(below.get(job.id, ()), below, node), tree
