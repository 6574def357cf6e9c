"""Who waits for whom: computing holds and releasing them, oldest first."""

from __future__ import annotations

from ductile.core.jobs.admission import decide_hold
from ductile.core.jobs.model import Hold, Job, JobStatus
from ductile.core.timestamps import format_timestamp
from ductile.store.model.jobs import ReleaseResult
from ductile.store.notifier import JOBS_READY
from ductile.store.rows import instant_or_none, read_job
from ductile.store.session import Cell, Session

#: Rows a sweep touches at most, so that no transaction delays dispatch for long.
SWEEP = 500
NO_LIMIT = (1 << 63) - 1


def key_is_taken(session: Session, *, dedupe_key: str | None, plugin: str, command: str) -> bool:
    return (
        dedupe_key is not None
        and session.one("key_holder", dedupe_key=dedupe_key, plugin=plugin, command=command) is not None
    )


def is_live(session: Session, job_id: str | None) -> bool:
    return job_id is not None and session.one("live_status", id=job_id) is not None


def hold_for(session: Session, job: Job, *, suspect: bool) -> Hold | None:
    """What a job that could be ready has to wait for. The job itself must not count as a holder now."""
    after = session.one("after_job_of", seq=job.seq)
    return decide_hold(
        now=session.now,
        predecessor_live=is_live(session, after[0] if after else None),
        key_taken=key_is_taken(session, dedupe_key=job.dedupe_key, plugin=job.plugin, command=job.command),
        suspect=suspect,
        other_suspect_active=suspect and session.one("active_suspect", seq=job.seq) is not None,
    )


def release_after(session: Session, job: Job, *, awaited: bool) -> None:
    """The job has stopped running, or ended without: let those move on who waited for it.

    `job` is as it was before; `awaited` says that it will not run again, and that somebody waits for that.
    """
    if job.dedupe_key is not None and _held_its_key(job):
        _release_one(
            session,
            "first_key_follower",
            dedupe_key=job.dedupe_key,
            plugin=job.plugin,
            command=job.command,
        )
    while awaited and (successors := session.all("successors", id=job.id, limit=SWEEP)):
        for row in successors:
            _rehold(session, read_job(row))
    if job.suspect:
        _release_one(session, "first_held_suspect")


def _held_its_key(job: Job) -> bool:
    return job.status is JobStatus.RUNNING or (job.status is JobStatus.QUEUED and job.hold is None)


def _release_one(session: Session, first_waiting: str, **values: Cell) -> None:
    """Make the oldest that can be ready so. One that must wait for something else does not block the rest."""
    while (row := session.one(first_waiting, **values)) is not None:
        waiting = read_job(row)
        if _rehold(session, waiting) in (None, waiting.hold):
            return


def _rehold(session: Session, job: Job) -> Hold | None:
    hold = hold_for(session, job, suspect=job.suspect)
    session.run("set_hold", seq=job.seq, hold=hold)
    if hold is None:
        session.publish(JOBS_READY)
    return hold


def release_due(session: Session, *, limit: int = SWEEP) -> ReleaseResult:
    """Move jobs on whose retry time has come: to ready, or behind whoever holds their key by now."""
    due = session.all("due_waiting", now=format_timestamp(session.now), limit=limit)
    for row in due:
        _rehold(session, read_job(row))
    following = session.one("next_due")
    return ReleaseResult(count=len(due), next_due_at=instant_or_none(following[0]) if following else None)


def clamp_waits(session: Session, *, limit: int = SWEEP) -> int:
    """After the clock went back, nothing waits longer than the span its wait was drawn from."""
    now = format_timestamp(session.now)
    return sum(
        len(session.all(query, now=now, limit=limit))
        for query in ("clamp_waits", "clamp_delivery_waits", "clamp_deadlines")
    )
