"""Putting jobs on the queue, with deduplication in the same transaction."""

from __future__ import annotations

from datetime import timedelta

from ductile.core.events.model import NewContext, NewEvent
from ductile.core.jobs.admission import KeyMatch, bare_key, decide_hold, find_duplicate
from ductile.core.jobs.model import (
    Callback,
    Hold,
    JobReason,
    JobStatus,
    LedgerEntry,
    LedgerKind,
    NewJob,
    Origin,
    Transition,
)
from ductile.core.jobs.settlement import CallbackEvent, CallbackState
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.timestamps import parse_timestamp
from ductile.store.model.submission import Accepted, ChildConflict, Deduplicated, EnqueueResult
from ductile.store.notifier import JOBS_READY
from ductile.store.rows import to_json
from ductile.store.session import Cell, Session
from ductile.store.verbs.holds import is_live, key_is_taken
from ductile.store.verbs.ledger import write_callback, write_ledger, write_transition
from ductile.store.verbs.subscribing import callback_columns, subscribe
from ductile.struct import asdict, replace

_SUBMITTED = Transition(from_status=None, to_status=JobStatus.QUEUED, reason=JobReason.SUBMITTED)
_TOLD_QUEUED = CallbackEvent(state=CallbackState.QUEUED, reason=JobReason.SUBMITTED)
_NO_ORIGIN = dict.fromkeys(f"origin_{name}" for name in Origin.__struct_fields__)
_NO_CALLBACK = dict.fromkeys(f"callback_{name}" for name in Callback.__struct_fields__)


def submit_job(session: Session, job: NewJob, window: timedelta) -> EnqueueResult:
    """Insert one job, unless it is a duplicate or a child that exists already.

    A pipeline run is inserted too, but does not begin: that is for `runs`.
    """
    if job.dedupe_key is not None:
        duplicate = _duplicate_of(session, job, window)
        if duplicate is not None:
            if job.callback is None:
                return duplicate
            return replace(duplicate, subscribed=subscribe(session, duplicate.job_id, job.callback))
    hold = _first_hold(session, job)
    seq = _insert(session, job, hold)
    if seq is None:
        return _conflict(session, job)
    if hold is None:
        session.publish(JOBS_READY)
    write_transition(session, _SUBMITTED, job, execution=0)
    if job.callback is not None:
        write_callback(session, _TOLD_QUEUED, job, attempt=1)
    return Accepted(job_id=job.id, plugin=job.plugin, command=job.command, seq=seq, ready=hold is None)


def _duplicate_of(session: Session, job: NewJob, window: timedelta) -> Deduplicated | None:
    key = {"dedupe_key": job.dedupe_key, "plugin": job.plugin, "command": job.command}
    live = session.one("live_match", **key) if job.dedupe_ttl is not None else None
    succeeded = session.one("succeeded_match", **key)
    matches = tuple(
        KeyMatch(job_id=found[0], succeeded_at=ended)
        for found, ended in (
            (live, None),
            (succeeded, parse_timestamp(succeeded[1]) if succeeded else None),
        )
        if found is not None
    )
    found = find_duplicate(
        matches,
        window=window if job.dedupe_ttl is None else timedelta(seconds=job.dedupe_ttl),
        override=job.dedupe_ttl is not None,
        now=session.now,
    )
    if found is None or job.dedupe_key is None:
        return None
    entry = LedgerEntry(
        kind=LedgerKind.JOB_DEDUPLICATED,
        job_id=found.job_id,
        data={"dedupe_key": bare_key(job.dedupe_key), "plugin": job.plugin, "command": job.command},
    )
    write_ledger(session, (entry,))
    return Deduplicated(
        job_id=found.job_id, plugin=job.plugin, command=job.command, dedupe_key=job.dedupe_key
    )


def _first_hold(session: Session, job: NewJob) -> Hold | None:
    if job.plugin == RUN_PLUGIN:
        return Hold.RUN
    if job.dedupe_key is None and job.after_job_id is None:
        return None  # nothing to wait for, which is what most jobs are like
    return decide_hold(
        now=session.now,
        predecessor_live=is_live(session, job.after_job_id),
        key_taken=key_is_taken(session, dedupe_key=job.dedupe_key, plugin=job.plugin, command=job.command),
    )


def _insert(session: Session, job: NewJob, hold: Hold | None) -> int | None:
    """Insert the job; its number, or None if a child with the same origin exists."""
    seq = session.next_seq("highest_in_queue")
    row: dict[str, Cell] = asdict(job)  # most columns are called as the fields are
    row["seq"], row["hold"], row["at"] = seq, hold, session.timestamp
    row["payload"] = None if job.payload is None else to_json(job.payload)
    if _is_lone(job):
        session.insert_later("insert_lone_job", row)
        return seq
    row.update(_NO_ORIGIN if job.origin is None else _origin_columns(job.origin))
    row.update(_NO_CALLBACK if job.callback is None else callback_columns(job.callback))
    if job.origin is not None:
        return session.insert("insert_job", **row)
    session.insert_later("insert_job", row)
    return seq


def _is_lone(job: NewJob) -> bool:
    led_to_it = job.parent_job_id or job.event_context_id or job.run_id or job.origin
    return not (led_to_it or job.step_path or job.after_job_id or job.callback)


def _origin_columns(origin: Origin) -> dict[str, Cell]:
    return {f"origin_{name}": each for name, each in asdict(origin).items()}


def _conflict(session: Session, job: NewJob) -> ChildConflict:
    """The same child of the same execution exists: our own defect, so it is told and not hidden."""
    assert job.origin is not None  # noqa: S101 - only a job with an origin can meet its own
    existing = session.one(
        "child_by_origin",
        origin_job_id=job.origin.job_id,
        origin_execution=job.origin.execution,
        origin_event_index=job.origin.event_index,
        origin_target=job.origin.target,
    )
    job_id = str(existing[0]) if existing else job.id
    entry = LedgerEntry(
        kind=LedgerKind.CHILD_CONFLICT,
        job_id=job.origin.job_id,
        data={"child": job_id, "event_index": job.origin.event_index, "target": job.origin.target},
    )
    write_ledger(session, (entry,))
    return ChildConflict(job_id=job_id)


def insert_event(
    session: Session, event: NewEvent, *, producer: str | None = None, index: int | None = None
) -> None:
    session.insert_later(
        "insert_event",
        {
            "id": event.id,
            "type": event.type,
            "source": event.source,
            "payload": to_json(event.payload),
            "headers": None if event.headers is None else to_json(dict(event.headers)),
            "dedupe_key": event.dedupe_key,
            "producer_job_id": producer,
            "producer_index": index,
            "at": session.timestamp,
        },
    )


def insert_context(session: Session, context: NewContext) -> None:
    session.run(
        "insert_context",
        id=context.id,
        parent_id=context.parent_id,
        run_id=context.run_id,
        pipeline=context.pipeline,
        step_path=context.step_path,
        baggage=to_json(context.baggage),
        hops=context.hops,
        at=session.timestamp,
    )
