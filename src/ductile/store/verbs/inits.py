"""`init`: once for each version of a plugin and its configuration."""

from __future__ import annotations

from datetime import timedelta

from ductile.core.jobs.model import Job, JobReason, JobStatus, NewJob, SubmittedBy
from ductile.core.jobs.settlement import Settlement
from ductile.core.timestamps import parse_timestamp
from ductile.store.model.jobs import InitKey, InitRecord, InitResult, InitStatus
from ductile.store.session import Session
from ductile.store.verbs.holds import is_live
from ductile.store.verbs.insert import submit_job

#: An init that a crash cut short is begun again, but not for ever.
MOST_TRIES = 3
#: Endings that say nothing about the plugin: the init is begun again.
_NOT_A_VERDICT = frozenset(
    {JobReason.ORPHANED, JobReason.CANCELLED, JobReason.PURGED, JobReason.PLUGIN_REMOVED}
)


def begin_init(session: Session, key: InitKey, job: NewJob) -> InitResult:
    """Put `job` on the queue if this version was never initialised; else say what came of it."""
    found = session.one(
        "init_record", plugin=key.plugin, fingerprint=key.fingerprint, config_hash=key.config_hash
    )
    status, tries, job_id, error = found or (InitStatus.PENDING, 0, None, None)
    if status != InitStatus.PENDING:
        return InitResult(status=InitStatus(status), job_id=job_id, error=error)
    if is_live(session, job_id):
        return InitResult(status=InitStatus.PENDING, job_id=job_id)
    if tries >= MOST_TRIES:
        error = f"init did not come to an end in {tries} tries"
        _write(session, key, InitStatus.FAILED, tries, job_id, error)
        return InitResult(status=InitStatus.FAILED, job_id=job_id, error=error)
    submit_job(session, job, timedelta(0))
    _write(session, key, InitStatus.PENDING, tries + 1, job.id, None)
    return InitResult(status=InitStatus.PENDING, job_id=job.id)


def inits(session: Session) -> tuple[InitRecord, ...]:
    return tuple(
        InitRecord(
            key=InitKey(plugin=plugin, fingerprint=fingerprint, config_hash=config_hash),
            status=InitStatus(status),
            job_id=job_id,
            error=error,
            updated_at=parse_timestamp(updated_at),
        )
        for plugin, fingerprint, config_hash, status, job_id, error, updated_at in session.all("inits")
    )


def note_init(session: Session, job: Job, settlement: Settlement) -> None:
    """Called for every job that ends: an init's verdict belongs to the transaction that ends it."""
    if job.command != "init" or job.submitted_by is not SubmittedBy.CORE or not settlement.is_terminal:
        return
    if settlement.status is JobStatus.SUCCEEDED:
        session.run(
            "finish_init", job_id=job.id, status=InitStatus.SUCCEEDED, error=None, at=session.timestamp
        )
    elif settlement.transitions[0].reason not in _NOT_A_VERDICT:
        error = settlement.last_error
        session.run("finish_init", job_id=job.id, status=InitStatus.FAILED, error=error, at=session.timestamp)


def _write(
    session: Session, key: InitKey, status: InitStatus, tries: int, job_id: str | None, error: str | None
) -> None:
    session.run(
        "put_init",
        plugin=key.plugin,
        fingerprint=key.fingerprint,
        config_hash=key.config_hash,
        status=status,
        tries=tries,
        job_id=job_id,
        error=error,
        at=session.timestamp,
    )
