"""Taking jobs to run: the heads of plugins below their cap, oldest first (SPEC 4.4, ENGINE 4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.admission import Caps, next_start
from ductile.core.instants import format_instant
from ductile.core.jobs import Job, JobStatus, Reason, Transition
from ductile.core.settlement import CallbackEvent, CallbackState
from ductile.store.rows import object_or_none, read_event, read_job
from ductile.store.session import Session
from ductile.store.values import Claim
from ductile.store.verbs.writing import write_callback, write_transition

_CLAIMED = Transition(from_status=JobStatus.QUEUED, to_status=JobStatus.RUNNING, reason=Reason.CLAIMED)
_TOLD_LOADING = CallbackEvent(state=CallbackState.LOADING)
_TOLD_WORKING = CallbackEvent(state=CallbackState.WORKING)


def claim(session: Session, *, owner: str, caps: Caps, limit: int, lease: timedelta) -> tuple[Claim, ...]:
    """Claim up to `limit` jobs. Counts come from the store: whatever else claims is seen."""
    running: dict[str, int] = dict(session.all("running_counts"))
    heads: dict[str, int] = dict(session.all("ready_heads"))
    until = format_instant(session.now + lease)
    claims: list[Claim] = []
    while len(claims) < limit and (plugin := next_start(heads, running, caps)) is not None:
        seq = heads.pop(plugin)
        claims.append(_claim_one(session, seq, owner=owner, until=until))
        running[plugin] = running.get(plugin, 0) + 1
        following = session.one("next_head", plugin=plugin, seq=seq)
        if following is not None and following[0] is not None:
            heads[plugin] = following[0]
    return tuple(claims)


def claim_these(
    session: Session, job_ids: Sequence[str], *, owner: str, lease: timedelta
) -> tuple[Claim, ...]:
    """Claim those of these jobs that are ready now, in the order given."""
    until = format_instant(session.now + lease)
    ready = [
        row[0]
        for job_id in dict.fromkeys(job_ids)
        if (row := session.one("ready_job", id=job_id)) is not None
    ]
    return tuple(_claim_one(session, seq, owner=owner, until=until) for seq in ready)


def _claim_one(session: Session, seq: int, *, owner: str, until: str) -> Claim:
    session.change("claim_job", seq=seq, at=session.stamp, owner=owner, lease_until=until)
    row = session.one("claimed_job", seq=seq)
    assert row is not None  # noqa: S101 - it was changed just now
    job = read_job(row[:-1], object_or_none(row[-1]))
    write_transition(session, _CLAIMED, job, execution=job.execution)
    if job.callback is not None:
        write_callback(session, _TOLD_LOADING, job_id=job.id, attempt=job.attempt, callback=job.callback)
    return _with_surroundings(session, job)


def _with_surroundings(session: Session, job: Job) -> Claim:
    event = session.one("event_by_id", id=job.source_event_id) if job.source_event_id else None
    state = session.one("plugin_state", plugin=job.plugin)
    context = session.one("context_by_id", id=job.event_context_id) if job.event_context_id else None
    return Claim(
        job=job,
        event=None if event is None else read_event(event),
        state={} if state is None else object_or_none(state[0]) or {},
        baggage={} if context is None else object_or_none(context[1]) or {},
    )


def note_working(session: Session, job_id: str, execution: int) -> None:
    """Tell the caller's URL that the plugin has its request, if this execution still runs."""
    row = session.one("job_for_settle", id=job_id)
    if row is None:
        return
    job = read_job(row)
    if job.status is JobStatus.RUNNING and job.execution == execution and job.callback is not None:
        write_callback(session, _TOLD_WORKING, job_id=job.id, attempt=job.attempt, callback=job.callback)
