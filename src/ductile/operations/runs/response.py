"""What the caller of a synchronous run is told: its result, and the tree of what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from ductile.core.jobs.model import Job, JobReason, JobStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.jobs.documents import job_output, milliseconds, plugin_response
from ductile.operations.jobs.tree import nest_jobs
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.records import JobDetails, LogRow


def finished(account: JobDetails) -> JsonObject:
    """The answer for a job or run that has ended."""
    job, members, executions = account.job, account.members, account.executions
    own = executions.get(job.id)
    shown: JsonObject = {
        "job_id": job.id,
        "status": outcome_of(job),
        "execution_mode": ExecutionMode.SYNCHRONOUS,
        "duration_ms": _lasted(job),
        "ok": job.status is JobStatus.SUCCEEDED,
        "result": None if own is None else job_output(job, own),
        **_branches(job, members, executions),
        "message": _message(job),
    }
    if job.last_error is not None:
        shown["error"] = job.last_error
    return shown


def still_running(
    account: JobDetails,
    *,
    allowed: timedelta,
    elapsed: timedelta,
    stopping: bool,
    partial: bool,
    cancels: bool,
) -> JsonObject:
    """The answer when the time was up first, or the daemon is stopping."""
    job, executions = account.job, account.executions
    # Nothing but a stop ends the waiting early; that too little has gone by may be a clock that was set back.
    exceeded = elapsed >= allowed or not stopping
    if not exceeded:
        message = "The daemon is stopping; the run goes on when it is started again."
    elif cancels:
        message = f"The run was not done after {_seconds(allowed)} and is being cancelled."
    else:
        message = f"The run goes on after {_seconds(allowed)}. Ask for GET /job/{job.id}."
    shown: JsonObject = {
        "job_id": job.id,
        "status": JobStatus.RUNNING,
        "execution_mode": ExecutionMode.SYNCHRONOUS,
        "timeout_exceeded": exceeded,
        "timeout_ms": round(allowed.total_seconds() * 1000),
        "elapsed_ms": round(elapsed.total_seconds() * 1000),
        "message": message,
    }
    if partial:
        done = [member for member in account.members if member.id in executions]
        shown |= _branches(job, done, executions)
    return shown


def outcome_of(job: Job) -> str:
    if job.status is JobStatus.SUCCEEDED:
        return "succeeded"
    return "partial_success" if job.reason is JobReason.PARTIAL_SUCCESS else "failed"


def mark_duplicate(answer: JsonObject, *, duplicate: bool) -> JsonObject:
    """Whether the caller was given a job that was there already, said in any answer."""
    said = f"This is a duplicate. {answer['message']}" if duplicate else answer["message"]
    return {**answer, "deduplicated": duplicate, "message": said}


def _branches(job: Job, members: Sequence[Job], executions: Mapping[str, LogRow]) -> JsonObject:
    """The same steps twice: below each other, and in a row."""
    below: dict[str, list[Job]] = {}
    known = {member.id for member in members}
    for member in members:
        parent = member.parent_job_id
        below.setdefault(parent if parent is not None and parent in known else job.id, []).append(member)

    def node(member: Job, children: list[JsonValue], flattened: bool) -> JsonValue:
        parent: JsonObject = {"parent_job_id": member.parent_job_id} if flattened else {}
        return {**_node(member, executions.get(member.id)), "children": children, **parent}

    tree: list[JsonValue] = [
        {**_node(member, executions.get(member.id)), "parent_job_id": member.parent_job_id}
        for member in members
    ]
    return {"children": nest_jobs(below.get(job.id, ()), below, node), "tree": tree}


def _node(member: Job, row: LogRow | None) -> JsonObject:
    return {
        "job_id": member.id,
        "plugin": member.plugin,
        "command": member.command,
        "step_id": member.step_path,
        "status": member.status,
        "error": member.last_error,
        "exit_code": None if row is None else row.exit_code,
        "duration_ms": None if row is None else milliseconds(row.duration),
        "result": None if row is None else plugin_response(row),
        "output_files": list(member.artifacts),
    }


def _lasted(job: Job) -> float | None:
    if job.completed_at is None:
        return None
    return milliseconds(job.completed_at - job.created_at)


def _message(job: Job) -> str:
    name = f"pipeline {job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin} {job.command}"
    told = f"{name}: {outcome_of(job)}"
    return told if job.last_error is None else f"{told}: {job.last_error}"


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
