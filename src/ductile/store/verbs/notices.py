"""Failure notices: creating the job or run that reports the recorded failures, which are then forgotten."""

from __future__ import annotations

from datetime import datetime

from ductile.core.events.model import IndexedEvent, NewEvent
from ductile.core.events.routing import EventProducer, start_pipeline
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.failure_notices import (
    NOTICE_DETAIL,
    NOTICE_EVENT,
    NOTICE_SOURCE,
    FailureGroup,
    notice_due_at,
    notice_payload,
    window_after,
)
from ductile.core.jobs.model import JobReason, LedgerEntry, NewJob, SubmittedBy
from ductile.core.policy import FailureReceiver, Policy
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.jobs import EnqueueResult
from ductile.store.model.notices import NoticeHealth, decode_failures
from ductile.store.notifier import JobsEnqueued
from ductile.store.rows import row_reader
from ductile.store.session import Session
from ductile.store.verbs.failures import read_window
from ductile.store.verbs.jobs.insert import insert_event, submit_job
from ductile.store.verbs.jobs.settle import insert_run_with_steps, with_first_steps
from ductile.store.verbs.ledger import write_ledger
from ductile.struct import replace

_read_group = row_reader(
    FailureGroup,
    reason=JobReason,
    first_at=parse_timestamp,
    last_at=parse_timestamp,
    examples=decode_failures,
)


def send_failure_notice(session: Session, policy: Policy) -> datetime | None:
    """Create the notice about the recorded failures if it is due, and forget them.

    Returns when the next one is due; None if no failure waits, or the receiver accepts no jobs now. Without a
    receiver the failures are forgotten: a receiver that is configured later gets no old ones.
    """
    first = session.fetch_value("first_failure_at")
    if first is None:
        return None
    if policy.on_failure is None:
        session.execute("delete_failure_groups")
        return None
    if not policy.on_failure.accepts_jobs:
        return None
    window, first_at = read_window(session), parse_timestamp(first)
    due_at = notice_due_at(window, first_at, session.now)
    if due_at > session.now:
        return due_at
    groups = [_read_group(row) for row in session.fetch_all("failure_groups")]
    event = NewEvent(
        id=make_id(session.now, session.rng),
        type=NOTICE_EVENT,
        source=NOTICE_SOURCE,
        payload=notice_payload(groups),
    )
    result = _submit_notice(session, event, policy.on_failure, policy)
    session.execute("delete_failure_groups")
    new_window = window_after(window, first_at, session.now)
    session.execute(
        "put_failure_notice",
        at=format_timestamp(new_window.begins_at),
        window_seconds=new_window.length.total_seconds(),
        job_id=None if result is None else result.job_id,
    )
    if result is not None:
        session.publish(JobsEnqueued(results=(result,)))
    return None


def _submit_notice(
    session: Session, event: NewEvent, receiver: FailureReceiver, policy: Policy
) -> EnqueueResult | None:
    """Submit the job or run of the receiver; None if the pipeline's own `if` prevents the run."""
    trace_id = make_trace_id(session.rng)
    pipeline = None if receiver.pipeline is None else policy.pipelines.by_name[receiver.pipeline]
    if pipeline is None:
        insert_event(session, event)
        job = NewJob(
            id=make_id(session.now, session.rng),
            plugin=receiver.plugin,
            command=receiver.command,
            submitted_by=SubmittedBy.HOOK,
            submitted_detail=NOTICE_DETAIL,
            max_attempts=policy.plugin(receiver.plugin).retry.max_attempts,
            source_event_id=event.id,
            trace_id=trace_id,
            configured_callback=policy.state_webhook(receiver.plugin, receiver.command, event.payload),
        )
        return submit_job(session, job, policy.dedupe_ttl)
    producer = EventProducer(submitted_by=SubmittedBy.HOOK, detail=NOTICE_DETAIL, trace_id=trace_id)
    budgeted = replace(policy, budget=session.regex_budget)
    indexed_event = IndexedEvent(event=event)
    started = start_pipeline(producer, indexed_event, pipeline, budgeted, session.now, session.rng)
    if isinstance(started, LedgerEntry):
        write_ledger(session, (started,))
        return None
    run = replace(started, event_is_new=True)
    return with_first_steps(*insert_run_with_steps(session, run, policy, policy.dedupe_ttl))


def notice_health(session: Session) -> NoticeHealth:
    """Return the health of the receiver of failure notices."""
    waiting = sum(row[3] for row in session.fetch_all("failure_groups"))
    row = session.fetch_one("failure_notice")
    if row is None:
        return NoticeHealth(waiting=waiting)
    _sent_at, _window, _job_id, failed, failed_id, error = row
    return NoticeHealth(failed=failed, failed_job_id=failed_id, error=error, waiting=waiting)
