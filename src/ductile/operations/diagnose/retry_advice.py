"""Advice for a job that ended badly: a retry is named only where it would be accepted."""

from __future__ import annotations

from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.remedies import REMEDIES, remedy_for
from ductile.store.model.jobs import RetryResult
from ductile.store.model.records import RunRecord

_RETRY = "ductile job retry {job}"
#: A step that failed for one of these was never made from its input; only another pipeline can change that.
_NEVER_MADE = frozenset({JobReason.BAD_TEMPLATE, JobReason.BAD_BAGGAGE, JobReason.BAD_CONDITION})
_ONLY_THE_LOG = "Only its log is left, so that it cannot be retried: submit it again."


async def remedy_that_works(
    context: OperationContext, job: Job, reason: JobReason, run: RunRecord | None
) -> str:
    """What to do about a job that ended for this reason. `run` is its record if it is a pipeline run."""
    names_retry = _RETRY in REMEDIES[reason]
    if job.status not in TERMINAL or job.status is JobStatus.SUCCEEDED:
        return remedy_for(reason, plugin=job.plugin, command=job.command, job_id=job.run_id or job.id)
    if reason in _NEVER_MADE and job.run_id is not None and job.step_path is not None:
        return await _take_up_again(context, job.run_id, job) or _plain(job, reason)
    if not names_retry:
        return _plain(job, reason)
    accepted, answer = await _accepted_retry(context, job)
    if accepted is not None:
        return remedy_for(reason, plugin=job.plugin, command=job.command, job_id=accepted)
    never_made = None if run is None else _first_never_made(run)
    if never_made is not None:
        again = await _take_up_again(context, job.id, never_made)
        return again or "Correct the pipeline, then start it again."
    if answer in (RetryResult.UNKNOWN_JOB, RetryResult.RETAINED_NO_MORE):
        return _ONLY_THE_LOG
    return "It cannot be retried: fix the cause, then submit it again."


def _plain(job: Job, reason: JobReason) -> str:
    return remedy_for(reason, plugin=job.plugin, command=job.command, job_id=job.run_id or job.id)


async def _accepted_retry(context: OperationContext, job: Job) -> tuple[str | None, RetryResult]:
    """The id to retry: that of its run, or its own while the run is live; with the last answer."""
    answer = RetryResult.UNKNOWN_JOB
    for job_id in (job.run_id, job.id):
        if job_id is not None:
            answer = await context.store.check_retry(job_id)
            if answer is RetryResult.QUEUED:
                return job_id, answer
    return None, answer


def _first_never_made(run: RunRecord) -> Job | None:
    found = [job for job in run.members if job.reason in _NEVER_MADE]
    return min(found, key=lambda job: job.completed_at or job.created_at, default=None)


async def _take_up_again(context: OperationContext, run_id: str, step: Job) -> str | None:
    """A new run from the step, by the corrected pipeline; None if that would be refused."""
    run = await context.store.job(run_id)
    if run is None or run.plugin != RUN_PLUGIN or step.step_path is None:
        return None
    pipeline = context.snapshot().rules.pipelines.by_name.get(run.command)
    if pipeline is None:
        return None
    if await context.store.check_rerun(run_id, step.step_path, pipeline.graph) is not RetryResult.QUEUED:
        return None
    return (
        f"{step.reason.description} A retry would fail in the same way: correct the pipeline, "
        "`ductile reload`, "
        f"then: ductile job retry {run_id} --from-step {step.step_path}"
    )
