"""Advice for a job that ended badly: a retry is named only where it would be accepted."""

from __future__ import annotations

from ductile.core.jobs import REASONS, TERMINAL, Job, JobStatus, Reason
from ductile.core.pipelines import RUN_PLUGIN
from ductile.operations.advice import ADVICE, advice_for
from ductile.operations.desk import Desk
from ductile.store.values.reading import RunRecord
from ductile.store.values.settling import RetryAnswer

_RETRY = "ductile job retry {job}"
#: A step that failed for one of these was never made from its input; only another pipeline can change that.
_NEVER_MADE = frozenset({Reason.BAD_TEMPLATE, Reason.BAD_BAGGAGE, Reason.BAD_CONDITION})
_ONLY_THE_LOG = "Only its log is left, so that it cannot be retried: submit it again."


async def working_advice(desk: Desk, job: Job, reason: Reason, run: RunRecord | None) -> str:
    """What to do about a job that ended for this reason. `run` is its record if it is a pipeline run."""
    names_retry = _RETRY in ADVICE[reason]
    if job.status not in TERMINAL or job.status is JobStatus.SUCCEEDED:
        return advice_for(reason, plugin=job.plugin, command=job.command, job_id=job.run_id or job.id)
    if reason in _NEVER_MADE and job.run_id is not None and job.step_path is not None:
        return await _take_up_again(desk, job.run_id, job) or _plain(job, reason)
    if not names_retry:
        return _plain(job, reason)
    accepted, answer = await _accepted_retry(desk, job)
    if accepted is not None:
        return advice_for(reason, plugin=job.plugin, command=job.command, job_id=accepted)
    never_made = None if run is None else _first_never_made(run)
    if never_made is not None:
        again = await _take_up_again(desk, job.id, never_made)
        return again or "Correct the pipeline, then start it again."
    if answer in (RetryAnswer.UNKNOWN_JOB, RetryAnswer.RETAINED_NO_MORE):
        return _ONLY_THE_LOG
    return "It cannot be retried: fix the cause, then submit it again."


def _plain(job: Job, reason: Reason) -> str:
    return advice_for(reason, plugin=job.plugin, command=job.command, job_id=job.run_id or job.id)


async def _accepted_retry(desk: Desk, job: Job) -> tuple[str | None, RetryAnswer]:
    """The id to retry: that of its run, or its own while the run is live; with the last answer."""
    answer = RetryAnswer.UNKNOWN_JOB
    for job_id in (job.run_id, job.id):
        if job_id is not None:
            answer = await desk.store.try_retry(job_id)
            if answer is RetryAnswer.QUEUED:
                return job_id, answer
    return None, answer


def _first_never_made(run: RunRecord) -> Job | None:
    found = [job for job in run.members if job.reason in _NEVER_MADE]
    return min(found, key=lambda job: job.completed_at or job.created_at, default=None)


async def _take_up_again(desk: Desk, run_id: str, step: Job) -> str | None:
    """A new run from the step, by the corrected pipeline; None if that would be refused."""
    run = await desk.store.job(run_id)
    if run is None or run.plugin != RUN_PLUGIN or step.step_path is None:
        return None
    pipeline = desk.snapshot().rules.pipelines.by_name.get(run.command)
    if pipeline is None:
        return None
    if await desk.store.try_rerun(run_id, step.step_path, pipeline.graph) is not RetryAnswer.QUEUED:
        return None
    return (
        f"{REASONS[step.reason]} A retry would fail in the same way: correct the pipeline, `ductile reload`, "
        f"then: ductile job retry {run_id} --from-step {step.step_path}"
    )
