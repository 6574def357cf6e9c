"""Changing jobs: cancel and retry."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.engine.reload.drain import draining_error
from ductile.errors import ConflictError, GoneError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import OneJob, find_job, resolve_job
from ductile.operations.request import DryRun
from ductile.operations.response import Id, Orphaned, Response, WasDryRun, from_record
from ductile.store.model.jobs import CancelStatus, RetryResult
from ductile.struct import about


class ChangeJob(OneJob):
    dry_run: DryRun = False


class CancelledJob(Response):
    job_id: Id
    cancel: Annotated[
        CancelStatus | None,
        about("`cancelled`: it was queued and is dead. `requested`: it will be when its process is gone."),
    ]
    status: JobStatus
    reason: JobReason
    orphaned: Orphaned = UNSET
    dry_run: WasDryRun = UNSET

    @property
    def http_message(self) -> str | None:
        if self.cancel is CancelStatus.REQUESTED:
            return "The job is being ended: it was running."
        return super().http_message


async def cancel_job(context: OperationContext, request: ChangeJob) -> CancelledJob:
    """Cancel a job. Raises `ConflictError` if it has ended."""
    job = await resolve_job(context, request.job_id)
    if request.dry_run:
        if job.status in TERMINAL:
            raise _already_ended(job)
        return from_record(CancelledJob, job, job_id=job.id, cancel=None, dry_run=True)
    result = await cancel_all(context, job.id)
    after = await find_job(context, job.id)
    if result in (CancelStatus.UNKNOWN_JOB, CancelStatus.ALREADY_ENDED):
        raise _already_ended(after)
    orphaned = context.is_orphaned(after) or UNSET
    return from_record(CancelledJob, after, job_id=after.id, cancel=result, orphaned=orphaned)


def _already_ended(job: Job) -> ConflictError:
    return ConflictError(f"the job has ended already: {job.status}", details={"status": job.status})


async def cancel_all(context: OperationContext, job_id: str) -> CancelStatus:
    """Cancel a job, or a run with all of its steps; running processes are stopped."""
    while True:
        cancelling = await context.store.cancel(job_id, context.snapshot().policy)
        if context.engine is not None:
            for running in cancelling.stopping:
                await context.engine.stop_job(running)
        context.report_ended(cancelling.ended)
        if not cancelling.more:
            return cancelling.status


class RetriedJob(Response):
    job_id: Id
    status: JobStatus
    reason: JobReason
    dry_run: WasDryRun = UNSET


async def retry_job(context: OperationContext, request: ChangeJob) -> RetriedJob:
    """Queue an ended job again. Raises `ConflictError` or `GoneError` if it cannot be retried."""
    job = await resolve_job(context, request.job_id)
    await refuse_retry_when_draining(context, job)
    if request.dry_run:
        refuse_retry(await context.store.check_retry(job.id), job)
        return RetriedJob(job_id=job.id, status=job.status, reason=job.reason, dry_run=True)
    if job.status not in TERMINAL:
        # Refused without a call of the store: a retry must not undo a cancel that ends the job just now.
        refuse_retry(RetryResult.NOT_ENDED, job)
    policy, charge = context.snapshot().policy, context.charge
    refuse_retry(await context.store.retry(job.id, policy, ended_at=job.completed_at, charge=charge), job)
    # The status right after the retry. The job may run or have ended by now.
    return RetriedJob(job_id=job.id, status=JobStatus.QUEUED, reason=JobReason.MANUAL_RETRY)


async def refuse_retry_when_draining(context: OperationContext, job: Job) -> None:
    """Raise `ConflictError` if a plugin of the job is being drained: a retry is new work."""
    if context.engine is None or not context.engine.draining:
        return
    used = {job.plugin}
    if job.plugin == RUN_PLUGIN and (record := await context.store.get_run(job.id)) is not None:
        used = {member.plugin for member in record.steps}
    if closed := sorted(used & context.engine.draining):
        raise draining_error(closed[0], None if job.plugin != RUN_PLUGIN else f"the run {job.id}")


def refuse_retry(result: RetryResult, job: Job) -> None:
    """Raise the error of a retry that the store refuses."""
    match result:
        case RetryResult.UNKNOWN_JOB | RetryResult.PRUNED:
            raise GoneError("only the log of this job is left", hint="Submit it again.")
        case RetryResult.SUCCEEDED:
            raise ConflictError("the job has succeeded", hint="Submit it as a new job to run it again.")
        case RetryResult.NOT_ENDED:
            then = f"`ductile job cancel {job.id}`, then `ductile job retry {job.id}`"
            raise ConflictError("the job has not ended", hint=f"Wait for it, or cancel it first: {then}.")
        case RetryResult.NOT_RETRYABLE:
            raise ConflictError(
                "its input could not be built by the pipeline as it was, and a retry would fail again",
                hint="Correct the pipeline and `ductile apply`, then start it again: "
                f"`ductile job retry {job.run_id or job.id} --from-step STEP`.",
            )
        case RetryResult.UNKNOWN_STEP:
            raise NotFoundError("the run has no such step", hint="See its steps with `ductile job tree`.")
        case RetryResult.CHANGED:
            raise ConflictError(
                "the pipeline was changed around this step", hint="Start it again, or from an earlier step."
            )
        case RetryResult.RUN_CANCELLED:
            raise ConflictError(
                f"the job is step {job.step_path} of a pipeline run that is being cancelled",
                hint=f"Retry the run when it has ended: ductile job retry {job.run_id}",
                details={"run_id": job.run_id, "step": job.step_path},
            )
        case RetryResult.CHANGED_SINCE_READ:
            raise ConflictError(
                "the job was retried and has ended again since this request came in",
                hint=f"See how it ended: ductile job show {job.id}",
            )
        case RetryResult.RUN_ENDED:
            raise ConflictError(
                f"the job is step {job.step_path} of a pipeline run that has ended",
                hint=f"Retry the run: ductile job retry {job.run_id}",
                details={"run_id": job.run_id, "step": job.step_path},
            )
