"""A job or a run with what is below it, read at one instant: for who waited for it, and for who asks why."""

from __future__ import annotations

from ductile.core.jobs.model import Job
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.store.model.records import JobDetails, RunRecord
from ductile.store.rows import job_from_log, read_job, read_log
from ductile.store.session import Session
from ductile.store.verbs.reading import job, read_ledger
from ductile.store.verbs.runs import graph_of

#: Jobs of a run, and notes about it.
_LARGEST_RUN = 10_000


def account(session: Session, job_id: str) -> JobDetails | None:
    """Without what the job was given: whoever waited for it knows that."""
    row = session.one("job_for_settle", id=job_id)
    own = job(session, job_id) if row is None else read_job(row)
    return None if own is None else _account_of(session, own)


def run(session: Session, run_id: str) -> RunRecord | None:
    """A run and everything in it; None if there is no such job, or it is none."""
    own = job(session, run_id)
    if own is None or own.plugin != RUN_PLUGIN:
        return None
    found = _account_of(session, own)
    fingerprint = session.one("run_fingerprint", run_id=run_id)
    return RunRecord(
        job=own,
        members=found.members,
        executions=found.executions,
        notes=tuple(
            read_ledger(row) for row in session.all("notes_of_job", job_id=run_id, limit=_LARGEST_RUN)
        ),
        graph=None if fingerprint is None else graph_of(session, fingerprint[0]),
    )


def _account_of(session: Session, own: Job) -> JobDetails:
    last = session.one("last_execution", job_id=own.id)
    executions = {} if last is None else {own.id: read_log(last)}
    if own.plugin != RUN_PLUGIN:
        return JobDetails(job=own, members=(), executions=executions)
    members = {
        row[0]: read_job(row) for row in session.all("members_of_run", run_id=own.id, limit=_LARGEST_RUN)
    }
    for row in session.all("log_of_run", run_id=own.id, limit=_LARGEST_RUN):
        logged = read_log(row)
        executions[logged.job_id] = logged
        members.setdefault(logged.job_id, job_from_log(logged, None))
    return JobDetails(
        job=own,
        members=tuple(sorted(members.values(), key=lambda member: member.created_at)),
        executions=executions,
    )
