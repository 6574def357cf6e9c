"""Inserting jobs, with deduplication in the same transaction, and the holds that keep them from starting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.events.model import NewContext, NewEvent
from ductile.core.jobs.admission import KeyMatch, bare_key, decide_hold, find_duplicate
from ductile.core.jobs.model import (
    Hold,
    Job,
    JobReason,
    JobStatus,
    LedgerKind,
    NewJob,
    Origin,
    StateSubscription,
    Transition,
)
from ductile.core.jobs.settlement import StateChange, WebhookState
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.core.webhooks.deliveries import merge_subscriptions
from ductile.store.model.jobs import Accepted, Deduplicated, DuplicateChild, EnqueueResult, ReleaseResult
from ductile.store.notifier import JOBS_READY
from ductile.store.rows import find_jobs, instant_or_none, read_job, to_json
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.ledger import append_ledger, write_transition
from ductile.store.verbs.outbox import callback_columns, put_subscription, subscribe, write_state_webhooks
from ductile.struct import asdict, replace

#: The maximum number of rows that one transaction changes, so that none delays claims for long.
BATCH_SIZE = 500
NO_LIMIT = (1 << 63) - 1

_SUBMITTED = Transition(from_status=None, to_status=JobStatus.QUEUED, reason=JobReason.SUBMITTED)
_QUEUED = StateChange(state=WebhookState.QUEUED, reason=JobReason.SUBMITTED)
_NO_ORIGIN = dict.fromkeys(f"origin_{name}" for name in Origin.__struct_fields__)
_NO_CALLBACK = dict.fromkeys(f"callback_{name}" for name in StateSubscription.__struct_fields__)

# -- inserting


def submit_job(session: Session, job: NewJob, window: timedelta) -> EnqueueResult:
    """Insert one job, unless it is a duplicate or a child that exists already.

    `window` is how long a success makes later submissions with its key duplicates. A pipeline run is inserted
    as a job; `ductile.store.verbs.jobs.settle.insert_run_with_steps` begins it.
    """
    if job.dedupe_key is not None and (existing_id := _matching_job(session, job, window)) is not None:
        target = {"plugin": job.plugin, "command": job.command}
        data: JsonObject = {"dedupe_key": bare_key(job.dedupe_key), **target}
        append_ledger(session, LedgerKind.JOB_DEDUPLICATED, data, job_id=existing_id)
        return Deduplicated(
            job_id=existing_id,
            dedupe_key=job.dedupe_key,
            **target,
            subscribed=None if job.callback is None else subscribe(session, existing_id, job.callback),
        )
    if job.plugin == RUN_PLUGIN:
        hold: Hold | None = Hold.RUN
    elif job.dedupe_key is None and job.after_job_id is None:
        hold = None
    else:
        hold = decide_hold(
            predecessor_live=is_live(session, job.after_job_id),
            key_taken=_is_key_taken(session, job),
        )
    first, *further = merge_subscriptions(job.callback, job.configured_callback) or (None,)
    seq = _insert_job(session, replace(job, callback=first) if first is not job.callback else job, hold)
    if seq is None:
        return _report_conflict(session, job)
    if hold is None:
        session.publish(JOBS_READY)
    write_transition(session, _SUBMITTED, job, execution=0)
    if first is not None:
        for subscription in further:
            put_subscription(session, job.id, subscription)
        write_state_webhooks(session, _QUEUED, job, attempt=1)
    return Accepted(job_id=job.id, plugin=job.plugin, command=job.command, seq=seq, ready=hold is None)


def find_duplicates(session: Session, jobs: Sequence[NewJob], window: timedelta) -> tuple[str | None, ...]:
    """Return for each job the one that it would be a duplicate of now; None if it would be accepted."""
    return tuple(_matching_job(session, job, window) for job in jobs)


def _matching_job(session: Session, job: NewJob, window: timedelta) -> str | None:
    """Return the id of the job that makes this one a duplicate; None if it is not one."""
    if job.dedupe_key is None:
        return None
    key = _key_columns(job)
    matches = []
    if job.dedupe_ttl is not None and (live := session.fetch_value("live_match", **key)) is not None:
        matches.append(KeyMatch(job_id=live, succeeded_at=None))
    if (succeeded := session.fetch_one("succeeded_match", **key)) is not None:
        matches.append(KeyMatch(job_id=succeeded[0], succeeded_at=parse_timestamp(succeeded[1])))
    duplicate = find_duplicate(
        tuple(matches),
        window=window if job.dedupe_ttl is None else timedelta(seconds=job.dedupe_ttl),
        has_own_window=job.dedupe_ttl is not None,
        now=session.now,
    )
    return None if duplicate is None else duplicate.job_id


def _insert_job(session: Session, job: NewJob, hold: Hold | None) -> int | None:
    """Insert the row. Returns its number, or None if a child with the same origin exists."""
    seq = session.next_seq("highest_in_queue")
    row: dict[str, SqlValue] = asdict(job)  # most columns have the names of the fields
    row["seq"], row["hold"], row["at"] = seq, hold, session.timestamp
    row["payload"] = None if job.payload is None else to_json(job.payload)
    row["charged"] = int(job.charged)
    has_parent = job.parent_job_id or job.event_context_id or job.run_id or job.origin
    if not (
        has_parent
        or job.step_path
        or job.after_job_id
        or job.callback
        or job.rerun_of
        or job.charged
        or job.node
    ):
        session.insert_buffered("insert_root_job", row)
        return seq
    row.update(_NO_CALLBACK if job.callback is None else callback_columns(job.callback))
    if job.origin is None:
        session.insert_buffered("insert_job", row | _NO_ORIGIN)
        return seq
    return seq if session.insert("insert_job", **row, **_origin_columns(job.origin)) else None


def _origin_columns(origin: Origin) -> dict[str, SqlValue]:
    return {f"origin_{name}": value for name, value in asdict(origin).items()}


def _report_conflict(session: Session, job: NewJob) -> DuplicateChild:
    """Record that the same child of the same execution exists, which is an internal error."""
    origin = job.origin
    assert origin is not None  # noqa: S101 - only a job with an origin can conflict
    job_id = session.fetch_value("child_by_origin", **_origin_columns(origin)) or job.id
    data: JsonObject = {"child": job_id, "event_index": origin.event_index, "target": origin.target}
    append_ledger(session, LedgerKind.CHILD_CONFLICT, data, job_id=origin.job_id)
    return DuplicateChild(job_id=job_id)


def insert_event(
    session: Session, event: NewEvent, *, producer: str | None = None, index: int | None = None
) -> None:
    row = asdict(event) | {
        "payload": to_json(event.payload),
        "headers": None if event.headers is None else to_json(dict(event.headers)),
        "producer_job_id": producer,
        "producer_index": index,
        "at": session.timestamp,
    }
    session.insert_buffered("insert_event", row)


def insert_context(session: Session, context: NewContext) -> None:
    row = asdict(context) | {"baggage": to_json(context.baggage), "at": session.timestamp}
    session.execute("insert_context", **row)


# -- holds: jobs that wait for another job or for an instant


def is_live(session: Session, job_id: str | None) -> bool:
    """Return whether the job is queued or running."""
    return job_id is not None and session.fetch_one("live_status", id=job_id) is not None


def _is_key_taken(session: Session, job: NewJob | Job) -> bool:
    return job.dedupe_key is not None and session.fetch_one("key_holder", **_key_columns(job)) is not None


def _key_columns(job: NewJob | Job) -> dict[str, SqlValue]:
    return {"dedupe_key": job.dedupe_key, "plugin": job.plugin, "command": job.command}


def hold_for(session: Session, job: Job, *, suspect: bool) -> Hold | None:
    """Return the hold of a job that is to be queued; None if it is ready.

    The job must not be the holder of its dedupe key now.
    """
    return decide_hold(
        predecessor_live=is_live(session, session.fetch_value("predecessor_of", seq=job.seq)),
        key_taken=_is_key_taken(session, job),
        behind_suspect=suspect and session.fetch_one("active_suspect", seq=job.seq) is not None,
    )


def release_waiting_jobs(session: Session, job: Job, *, has_successors: bool) -> None:
    """Release the jobs that waited for this one, which has stopped running or ended while queued.

    `job` is the job as it was before. `has_successors`: it has ended for good, and other jobs wait for that.
    """
    held_key = job.status is JobStatus.RUNNING or (job.status is JobStatus.QUEUED and job.hold is None)
    if job.dedupe_key is not None and held_key:
        _release_first(session, "first_key_follower", **_key_columns(job))
    while has_successors and (successors := find_jobs(session, "successors", id=job.id, limit=BATCH_SIZE)):
        for successor in successors:
            set_hold(session, successor)
    if job.suspect:
        _release_first(session, "first_held_suspect")


def _release_first(session: Session, first_waiting: str, **values: SqlValue) -> None:
    """Make the oldest waiting job ready.

    If it has to wait for something else now, the next one has its turn.
    """
    while (row := session.fetch_one(first_waiting, **values)) is not None:
        waiting = read_job(row)
        if set_hold(session, waiting) in (None, waiting.hold):
            return


def set_hold(session: Session, job: Job) -> Hold | None:
    """Give a waiting job the hold that it has now. Returns the hold; None if the job is ready."""
    hold = hold_for(session, job, suspect=job.suspect)
    session.execute("set_hold", seq=job.seq, hold=hold)
    if hold is None:
        session.publish(JOBS_READY)
    return hold


def release_due(session: Session, *, limit: int = BATCH_SIZE) -> ReleaseResult:
    """Release jobs whose retry is due: they become ready, or wait for the holder of their key."""
    due = find_jobs(session, "due_waiting", now=format_timestamp(session.now), limit=limit)
    for job in due:
        set_hold(session, job)
    return ReleaseResult(count=len(due), next_due_at=instant_or_none(session.fetch_value("next_due")))


def shorten_waits(session: Session, *, limit: int = BATCH_SIZE) -> int:
    """Shorten the waits that became longer because the clock was set back. Returns their number."""
    now = format_timestamp(session.now)
    return sum(
        len(session.fetch_all(query, now=now, limit=limit))
        for query in ("shorten_waits", "shorten_delivery_waits", "shorten_deadlines")
    )
