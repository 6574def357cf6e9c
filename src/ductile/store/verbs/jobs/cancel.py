"""Ending jobs from outside an execution, with a settlement: cancel, recovery, and batches of queued jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.jobs.model import (
    TERMINAL,
    EndedEarly,
    Job,
    JobReason,
    JobStatus,
    LedgerKind,
    Orphaned,
    Outcome,
)
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.timestamps import format_timestamp
from ductile.store.model.jobs import BatchResult, CancelResult, CancelStatus, JobStatusChange, OverdueRuns
from ductile.store.notifier import CancelRequested
from ductile.store.rows import find_job, instant_or_none, to_json
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.jobs.insert import BATCH_SIZE, NO_LIMIT
from ductile.store.verbs.jobs.settle import end_job, end_run
from ductile.store.verbs.ledger import append_ledger

_CANCELLED_IN_QUEUE = EndedEarly(reason=JobReason.CANCELLED, error="cancelled while it was queued")


def cancel(session: Session, job_id: str, policy: Policy, *, limit: int = BATCH_SIZE) -> CancelResult:
    """End a queued job, and request the end of a running one. A run is cancelled with all of its steps."""
    job = find_job(session, job_id)
    if job is None and session.fetch_one("job_was_logged", job_id=job_id) is None:
        return CancelResult(status=CancelStatus.UNKNOWN_JOB)
    if job is None or job.status in TERMINAL:
        return CancelResult(status=CancelStatus.ALREADY_ENDED)
    if job.plugin == RUN_PLUGIN:
        return _cancel_run(session, job, policy, limit)
    if job.status is JobStatus.QUEUED:
        ended = end_job(session, job, _CANCELLED_IN_QUEUE, policy).ended
        return CancelResult(status=CancelStatus.CANCELLED, ended=tuple(ended))
    _request_cancel(session, job)
    session.publish(CancelRequested(job_id=job.id))
    return CancelResult(status=CancelStatus.REQUESTED, stopping=(job.id,))


def _request_cancel(session: Session, job: Job) -> None:
    if job.cancel_requested_at is None:
        session.execute("request_cancel", seq=job.seq, at=session.timestamp)
        append_ledger(
            session, LedgerKind.JOB_CANCEL_REQUESTED, job_id=job.id, run_id=job.run_id, token=job.token
        )


def _cancel_run(session: Session, run: Job, policy: Policy, limit: int) -> CancelResult:
    """Cancel a run.

    Every live step has the request before one of them ends, so that no step starts another.
    """
    _request_cancel(session, run)
    session.execute("request_cancel_of_members", run_id=run.id, at=session.timestamp)
    queued = session.fetch_all("live_members", run_id=run.id, status=JobStatus.QUEUED, limit=limit)
    batch = end_all(session, queued, _CANCELLED_IN_QUEUE, policy, limit=limit)
    running = session.fetch_all("live_members", run_id=run.id, status=JobStatus.RUNNING, limit=NO_LIMIT)
    for row in running:
        session.publish(CancelRequested(job_id=row[0]))
    has_ended = any(ended.id == run.id for ended in batch.jobs)
    return CancelResult(
        status=CancelStatus.CANCELLED if has_ended else CancelStatus.REQUESTED,
        stopping=tuple(str(row[0]) for row in running),
        ended=batch.jobs,
        more=batch.more,
    )


def cancel_overdue(session: Session, policy: Policy, *, limit: int = BATCH_SIZE) -> OverdueRuns:
    """Cancel the runs whose deadline has passed; one batch."""
    cancelled: list[CancelResult] = []
    for (run_id,) in session.fetch_all("overdue_runs", now=format_timestamp(session.now), limit=limit):
        result = cancel(session, run_id, policy)
        cancelled.append(result)
        if not result.more:
            session.execute("clear_deadline", run_id=run_id)
    next_due_at = instant_or_none(session.fetch_value("next_deadline"))
    return OverdueRuns(cancelled=tuple(cancelled), next_due_at=next_due_at)


def recover(
    session: Session,
    policy: Policy,
    *,
    on_node: bool = False,
    live_owners: Sequence[str] = (),
    limit: int = BATCH_SIZE,
) -> BatchResult:
    """Recover one batch of the jobs and runs that a crash left behind.

    Every running job whose daemon has ended is orphaned and goes back to the queue; without nodes, no other
    daemon runs jobs of this store. `on_node`: another node can run it at once. Jobs of `live_owners` are left
    alone, even if these have ended by now. Then queued steps of cancelled runs end, and runs without a live
    step, of which there should be none.
    """
    ended = end_all(
        session,
        session.fetch_all("running_jobs", live_owners=to_json(list(live_owners)), limit=limit),
        Orphaned(on_node=on_node),
        policy,
        limit=limit,
    )
    if ended.more:
        return ended
    rows = session.fetch_all("cancelled_in_queue", limit=limit)
    cancelled = end_all(session, rows, _CANCELLED_IN_QUEUE, policy, limit=limit)
    if cancelled.more:
        return BatchResult(jobs=ended.jobs + cancelled.jobs, more=True)
    stalled: list[JobStatusChange] = []
    rows = session.fetch_all("stalled_runs", limit=limit)
    for row in rows:
        append_ledger(session, LedgerKind.RUN_STALLED, job_id=row[0], run_id=row[0])
        stalled += end_run(session, row[0], policy, stalled=True).ended
    return BatchResult(jobs=(*ended.jobs, *cancelled.jobs, *stalled), more=len(rows) == limit)


def end_queued(
    session: Session,
    reason: JobReason,
    policy: Policy,
    *,
    plugins: Sequence[str] | None = None,
    keep: bool = False,
    limit: int = BATCH_SIZE,
) -> BatchResult:
    """End queued jobs of these plugins or, with `keep`, of all others; one batch."""
    names = None if plugins is None else to_json(list(plugins))
    rows = session.fetch_all("queued_of_plugins", plugins=names, keep=int(keep), limit=limit)
    outcome = EndedEarly(reason=reason, error=reason.description)
    return end_all(session, rows, outcome, policy, limit=limit)


def end_all(
    session: Session, rows: Sequence[tuple[SqlValue, ...]], outcome: Outcome, policy: Policy, *, limit: int
) -> BatchResult:
    """End the jobs whose ids are the first columns of `rows`, of which at most `limit` were read."""
    ended: list[JobStatusChange] = []
    for row in rows:
        # The job is read again: the end of the one before may have changed it.
        job = find_job(session, row[0])
        if job is not None and job.status not in TERMINAL:
            ended += end_job(session, job, outcome, policy).ended
    return BatchResult(jobs=tuple(ended), more=len(rows) == limit)
