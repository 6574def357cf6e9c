"""Every way in which an execution ends without success: again, given up, put back or ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from ductile.core.jobs.model import Job, JobReason, JobStatus, Transition
from ductile.core.jobs.outcomes import (
    Completed,
    EndedEarly,
    Failed,
    Interrupted,
    Orphaned,
    RunEnded,
    StepNotCreated,
    TimedOut,
)
from ductile.core.jobs.retry import RetryPolicy, plan_delay
from ductile.core.jobs.settlement import LogEntry, LogStatus, Settlement, SettleView
from ductile.core.policy import Policy

#: A recovered job waits its retry delay, but never longer than this: the crash was not its fault.
RECOVERY_DELAY_CAP = timedelta(seconds=60)


def refusal(reason: JobReason, error: str, outcome: Completed) -> Failed:
    """An answer that is well-formed but cannot be applied: a permanent failure of the attempt."""
    return Failed(reason=reason, error=error, permanent=True, evidence=outcome.evidence)


def fail(view: SettleView, outcome: Failed, rules: Policy, now: datetime, rng: Random) -> Settlement:
    job = view.job
    through = Transition(from_status=job.status, to_status=JobStatus.FAILED, reason=outcome.reason)
    log = LogEntry(
        status=LogStatus.FAILED, reason=outcome.reason, error=outcome.error, evidence=outcome.evidence
    )
    if outcome.permanent:
        return Settlement(transitions=(through,), attempt=job.attempt, last_error=outcome.error, log=log)
    return _retry_or_give_up(view, through, log, rules, now, rng)


def _retry_or_give_up(
    view: SettleView, through: Transition, log: LogEntry, rules: Policy, now: datetime, rng: Random
) -> Settlement:
    job = view.job
    if job.attempt >= job.max_attempts:
        last = Transition(
            from_status=through.to_status, to_status=JobStatus.DEAD, reason=JobReason.ATTEMPTS_EXHAUSTED
        )
        return Settlement(transitions=(through, last), attempt=job.attempt, last_error=log.error, log=log)
    back = Transition(from_status=through.to_status, to_status=JobStatus.QUEUED, reason=JobReason.RETRY)
    return Settlement(
        transitions=(through, back),
        attempt=job.attempt + 1,
        next_retry_at=now + plan_delay(_retry_policy(view, rules), job.attempt, rng),
        last_error=log.error,
        log=log,
    )


def _retry_policy(view: SettleView, rules: Policy) -> RetryPolicy:
    """The step's own, else the plugin's."""
    step = None if view.run is None else view.run.info.graph.step(view.job.step_path)
    own = None if step is None or step.retry is None else step.retry.policy
    return own or rules.plugin(view.job.plugin).retry


def time_out(view: SettleView, outcome: TimedOut, rules: Policy, now: datetime, rng: Random) -> Settlement:
    through = Transition(
        from_status=view.job.status, to_status=JobStatus.TIMED_OUT, reason=JobReason.DEADLINE_EXCEEDED
    )
    log = LogEntry(
        status=LogStatus.TIMED_OUT,
        reason=JobReason.DEADLINE_EXCEEDED,
        error=outcome.error,
        evidence=outcome.evidence,
    )
    return _retry_or_give_up(view, through, log, rules, now, rng)


def interrupt(job: Job, outcome: Interrupted) -> Settlement:
    back = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=outcome.reason)
    return Settlement(
        transitions=(back,),
        attempt=job.attempt,
        last_error=outcome.error or job.last_error,
        suspect=job.suspect,
        log=LogEntry(
            status=LogStatus.INTERRUPTED,
            reason=outcome.reason,
            error=outcome.error or "the daemon was stopped while the job ran",
            evidence=outcome.evidence,
        ),
    )


def recover(view: SettleView, outcome: Orphaned, rules: Policy, now: datetime, rng: Random) -> Settlement:
    job = view.job
    error = "the daemon died while the job ran"
    log = LogEntry(
        status=LogStatus.ORPHANED, reason=JobReason.ORPHANED, error=error, evidence=outcome.evidence
    )
    if job.attempt >= job.max_attempts:
        through = Transition(from_status=job.status, to_status=JobStatus.FAILED, reason=JobReason.ORPHANED)
        return _retry_or_give_up(view, through, log, rules, now, rng)
    delay = min(plan_delay(_retry_policy(view, rules), job.attempt, rng), RECOVERY_DELAY_CAP)
    back = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=JobReason.RECOVERED)
    return Settlement(
        transitions=(back,),
        attempt=job.attempt + 1,
        next_retry_at=now + delay,
        last_error=error,
        suspect=True,
        log=log,
    )


def end(job: Job, outcome: EndedEarly) -> Settlement:
    edge = Transition(from_status=job.status, to_status=JobStatus.DEAD, reason=outcome.reason)
    log = LogEntry(
        status=LogStatus.CANCELLED, reason=outcome.reason, error=outcome.error, evidence=outcome.evidence
    )
    return Settlement(
        transitions=(edge,),
        attempt=job.attempt,
        last_error=outcome.error,
        log=log if job.status is JobStatus.RUNNING else None,
    )


def end_run(job: Job, outcome: RunEnded) -> Settlement:
    """A run ends as its lines did; what it shows as its answer is that of its last step."""
    status = JobStatus.SUCCEEDED if outcome.succeeded else JobStatus.FAILED
    edge = Transition(from_status=job.status, to_status=status, reason=outcome.reason)
    log = LogEntry(
        status=LogStatus.SUCCEEDED if outcome.succeeded else LogStatus.FAILED,
        reason=outcome.reason,
        error=outcome.error,
        evidence=outcome.evidence,
    )
    return Settlement(
        transitions=(edge,),
        attempt=job.attempt,
        last_error=outcome.error,
        artifacts=outcome.artifacts,
        log=log,
    )


def not_made(job: Job, outcome: StepNotCreated) -> Settlement:
    """A step whose template, baggage or condition failed: it ends before it ran."""
    edge = Transition(from_status=job.status, to_status=JobStatus.FAILED, reason=outcome.reason)
    return Settlement(transitions=(edge,), attempt=job.attempt, last_error=outcome.error)
