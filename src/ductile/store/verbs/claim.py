"""Taking jobs to run: the heads of plugins below their cap, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.jobs.admission import Caps, choose_next_plugin
from ductile.core.jobs.model import Job, JobReason, JobStatus, NewJob, Transition
from ductile.core.jobs.settlement import CallbackEvent, CallbackState
from ductile.core.json import JsonObject
from ductile.core.timestamps import format_timestamp
from ductile.errors import StoreError
from ductile.store.model.jobs import ClaimedJob
from ductile.store.model.submission import Accepted
from ductile.store.rows import object_or_none, read_event, read_job
from ductile.store.session import Session
from ductile.store.verbs.insert import submit_job
from ductile.store.verbs.ledger import next_ledger_seq, write_callback, write_transition
from ductile.store.verbs.runs import graph_of
from ductile.store.verbs.settle import claim_run

_CLAIMED = Transition(from_status=JobStatus.QUEUED, to_status=JobStatus.RUNNING, reason=JobReason.CLAIMED)
_TOLD_LOADING = CallbackEvent(state=CallbackState.LOADING, reason=JobReason.CLAIMED)
_TOLD_WORKING = CallbackEvent(state=CallbackState.WORKING, reason=JobReason.CLAIMED)


def claim(
    session: Session, *, owner: str, caps: Caps, limit: int, lease: timedelta
) -> tuple[ClaimedJob, ...]:
    """Claim up to `limit` jobs. Counts come from the store: whatever else claims is seen."""
    heads: dict[str, int] = dict(session.all("ready_heads"))
    if not heads:
        return ()  # as most find it who ask whether there is more
    running: dict[str, int] = dict(session.all("running_counts"))
    until = format_timestamp(session.now + lease)
    claims: list[ClaimedJob] = []
    while len(claims) < limit and (plugin := choose_next_plugin(heads, running, caps)) is not None:
        seq = heads.pop(plugin)
        claims.append(_claim_one(session, seq, owner=owner, until=until))
        running[plugin] = running.get(plugin, 0) + 1
        if len(claims) < limit and (following := _head_after(session, plugin, seq)) is not None:
            heads[plugin] = following
    return tuple(claims)


def _head_after(session: Session, plugin: str, seq: int) -> int | None:
    row = session.one("next_head", plugin=plugin, seq=seq)
    return None if row is None else row[0]


def claim_by_id(
    session: Session, job_ids: Sequence[str], *, owner: str, lease: timedelta
) -> tuple[ClaimedJob, ...]:
    """Claim those of these jobs that are ready now, in the order given."""
    until = format_timestamp(session.now + lease)
    ready = [
        row[0]
        for job_id in dict.fromkeys(job_ids)
        if (row := session.one("ready_job", id=job_id)) is not None
    ]
    return tuple(_claim_one(session, seq, owner=owner, until=until) for seq in ready)


def enqueue_and_claim(
    session: Session, job: NewJob, *, owner: str, lease: timedelta, limit: int | None
) -> tuple[ClaimedJob, ...]:
    """Submit and claim one job in a single step; nothing if `limit` jobs of its plugin run already."""
    running: dict[str, int] = {} if limit is None else dict(session.all("running_counts"))
    if limit is not None and running.get(job.plugin, 0) >= limit:
        return ()
    answer = submit_job(session, job, timedelta(0))
    if not isinstance(answer, Accepted):
        raise StoreError(f"the job {job.id} was not accepted")
    until = format_timestamp(session.now + lease)
    return (_claim_one(session, answer.seq, owner=owner, until=until),)


def _claim_one(session: Session, seq: int, *, owner: str, until: str) -> ClaimedJob:
    number = next_ledger_seq(session)
    row = session.one(
        "claim_job", seq=seq, at=session.timestamp, owner=owner, lease_until=until, claim_seq=number
    )
    if row is None:
        raise StoreError(f"the job {seq} was not there to be claimed")
    job = read_job(row[:-2], object_or_none(row[-2]))
    write_transition(session, _CLAIMED, job, execution=job.execution, seq=number)
    if job.callback is not None:
        write_callback(session, _TOLD_LOADING, job, attempt=job.attempt)
    return _with_surroundings(session, job, object_or_none(row[-1]) or {})


def _with_surroundings(session: Session, job: Job, state: JsonObject) -> ClaimedJob:
    event = session.one("event_by_id", id=job.source_event_id) if job.source_event_id else None
    context = session.one("context_by_id", id=job.event_context_id) if job.event_context_id else None
    run = None if job.run_id is None else session.one("run_of_claim", run_id=job.run_id)
    fingerprint, status, is_followed = run or (None, None, False)
    if status == JobStatus.QUEUED:
        claim_run(session, str(job.run_id))  # a run starts when the first of its steps does
    graph = None if fingerprint is None else graph_of(session, fingerprint)
    step = None if graph is None else graph.step(job.step_path)
    return ClaimedJob(
        job=job,
        event=None if event is None else read_event(event),
        state=state,
        baggage={} if context is None else object_or_none(context[1]) or {},
        pipeline=None if graph is None else graph.pipeline,
        timeout=None if step is None or step.timeout is None else timedelta(seconds=step.timeout),
        run_is_followed=bool(is_followed),
    )


def mark_working(session: Session, job_id: str, execution: int) -> None:
    """Tell the caller's URL that the plugin has its request, if this execution still runs.

    A run is at work when the first of its steps is, so for that its caller is told as well.
    """
    row = session.one("job_for_settle", id=job_id)
    if row is None:
        return
    job = read_job(row)
    if job.status is not JobStatus.RUNNING or job.execution != execution:
        return
    _tell_working(session, job)
    if job.run_id is None or (row := session.one("job_for_settle", id=job.run_id)) is None:
        return
    told = session.one("callback_state", job_id=job.run_id)
    # Nothing was told yet of a run whose first URL was subscribed by a duplicate while it ran.
    if told is not None and told[0] in (CallbackState.LOADING, None):
        _tell_working(session, read_job(row))


def _tell_working(session: Session, job: Job) -> None:
    if job.callback is not None:
        write_callback(session, _TOLD_WORKING, job, attempt=job.attempt)
