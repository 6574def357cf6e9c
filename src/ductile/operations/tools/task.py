"""Jobs as durable tasks of the Model Context Protocol. The id of a task is the id of its job.

A task is read from the store each time: it survives restarts of its client and of the daemon.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from ductile.core.jobs.model import TERMINAL, JobReason, JobStatus
from ductile.core.timestamps import parse_timestamp
from ductile.operations.diagnose.explain_run import StepOutcome, StepReport
from ductile.operations.jobs.query import FullJob
from ductile.operations.response import Id, Timestamp
from ductile.struct import Value, about

#: How long a call waits that returns a task, or that asks for progress at once.
SHORT_WAIT = timedelta(seconds=2)
#: Milliseconds between two requests for a task, by its age.
_POLL_INTERVALS = ((timedelta(seconds=10), 1_000), (timedelta(minutes=2), 2_000))
_LONGEST_POLL_INTERVAL = 5_000


class TaskStatus(StrEnum):
    """The statuses that the protocol defines. A job that failed is a completed task: its result says so."""

    WORKING = "working"
    #: Reserved for jobs that wait for an answer of a person.
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class JobTask(Value):
    """A job as a task of the Model Context Protocol."""

    task_id: Annotated[Id, about("The id of the job.")]
    status: TaskStatus
    status_message: Annotated[str, about("What it does, or why it ended; of a run, how far its steps are.")]
    created_at: Timestamp
    last_updated_at: Timestamp
    ttl_ms: Annotated[int, about("For how long after its creation it is kept, at least.")]
    poll_interval_ms: Annotated[int, about("How long to wait before asking again.")]


def task_status(status: JobStatus, reason: JobReason) -> TaskStatus:
    """Return the status of the task of a job with this status and reason."""
    if status not in TERMINAL:
        return TaskStatus.WORKING
    return TaskStatus.CANCELLED if reason is JobReason.CANCELLED else TaskStatus.COMPLETED


def job_task(job: FullJob, *, progress: str | None, retention: timedelta, now: datetime) -> JobTask:
    """Return the job as a task.

    `progress` is how far the steps of a run are, `retention` counts from its end.
    """
    last = job.transitions[-1].at if job.transitions else job.created_at
    created = parse_timestamp(job.created_at)
    ended = now if job.completed_at is None else parse_timestamp(job.completed_at)
    return JobTask(
        task_id=job.job_id,
        status=task_status(job.status, job.reason),
        status_message=progress or describe_job(job),
        created_at=job.created_at,
        last_updated_at=last,
        ttl_ms=int((retention + ended - created).total_seconds() * 1000),
        poll_interval_ms=poll_interval(now - created),
    )


def poll_interval(age: timedelta) -> int:
    """Return the milliseconds that a client waits before it asks again for a task of this age."""
    return next((interval for limit, interval in _POLL_INTERVALS if age < limit), _LONGEST_POLL_INTERVAL)


class StepProgress(Value):
    """The progress of a job."""

    #: 1 more than the starts and ends of steps so far. For a job that is no run: of attempts.
    done: int
    #: Of a run: what `done` is when each of its steps has ended.
    total: int | None = None
    #: `2 of 5 steps have ended, running: fetch`; empty for a job that is no run.
    text: str = ""


def measure_progress(job: FullJob, steps: tuple[StepReport, ...]) -> StepProgress:
    """Return how far a job is; `steps` are those of a run."""
    counted = [step for step in steps if step.outcome is not StepOutcome.ENTERED]
    if not counted:
        return StepProgress(done=2 * job.attempt - (job.status is not JobStatus.RUNNING))
    running = [step.step for step in counted if any(member.status not in TERMINAL for member in step.jobs)]
    reached = [step for step in counted if step.outcome is not StepOutcome.NOT_REACHED]
    ended = [step for step in reached if step.step not in running]
    text = f"{len(ended)} of {len(counted)} steps have ended"
    return StepProgress(
        done=1 + 2 * len(ended) + len(running),
        total=1 + 2 * len(counted),
        text=f"{text}, running: {', '.join(running)}" if running else text,
    )


def describe_job(job: FullJob) -> str:
    """Return what a job does, or why it ended: `it is running (attempt 2 of 4)`."""
    is_running = job.status is JobStatus.RUNNING
    text = "it is running" if is_running else f"{job.status}: {job.reason.description}"
    attempt = f" (attempt {job.attempt} of {job.max_attempts})" if job.attempt > 1 else ""
    return f"{text}{attempt}"
