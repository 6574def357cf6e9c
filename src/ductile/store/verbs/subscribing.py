"""Subscribing the state webhook URL of a duplicate to the job that is there (docs/reference/webhooks.md)."""

from __future__ import annotations

from ductile.core.jobs.model import TERMINAL, Callback, Job, JobStatus
from ductile.core.jobs.settlement import CallbackEvent, CallbackState
from ductile.core.timestamps import format_timestamp
from ductile.core.webhooks.deliveries import MAX_SUBSCRIPTIONS, StateChoice, merge_choices, wants
from ductile.protocol.plugin_messages import result_in
from ductile.store.rows import read_choice, read_job, write_choice
from ductile.store.session import Cell, Session
from ductile.store.verbs.ledger import encode_callback, write_delivery


def callback_columns(callback: Callback) -> dict[str, Cell]:
    """The subscription that a job's own row holds: the first one."""
    return {
        "callback_url": callback.url,
        "callback_model": callback.model,
        "callback_events": write_choice(callback.events),
    }


def subscribe(session: Session, job_id: str, wanted: Callback) -> bool:
    """Have the URL sent what becomes of the job; its end at once if it has ended.

    A URL that is subscribed already is sent nothing twice; it gets the states of both submissions. Returns
    False, and changes nothing, if the job has as many subscriptions as it may have.
    """
    row = session.one("job_for_settle", id=job_id)
    if row is None:
        return False
    job = read_job(row)
    known, before = _known_choice(session, job, wanted.url)
    if not known and session.all("further_subscriptions", job_id=job.id)[MAX_SUBSCRIPTIONS - 2 :]:
        return False
    merged = merge_choices(before, wanted.events) if known else wanted.events
    if job.callback is None or job.callback.url == wanted.url:
        # The model is that of what runs: a duplicate may have another payload.
        model = wanted.model if job.callback is None else job.callback.model
        first = Callback(url=wanted.url, model=model, events=merged)
        session.run("set_callback", job_id=job.id, **callback_columns(first))
    else:
        session.run("put_subscription", job_id=job.id, url=wanted.url, events=write_choice(merged))
    if job.status in TERMINAL:
        event = _final_event(session, job)
        if wants(merged, event.state) and not (known and wants(before, event.state)):
            _write_final(session, job, event, wanted)
    return True


def _known_choice(session: Session, job: Job, url: str) -> tuple[bool, StateChoice]:
    if job.callback is not None and job.callback.url == url:
        return True, job.callback.events
    row = session.one("subscription", job_id=job.id, url=url)
    return (False, None) if row is None else (True, read_choice(row[0]))


def _final_event(session: Session, job: Job) -> CallbackEvent:
    """How the job ended, from its row and its log."""
    if job.status is not JobStatus.SUCCEEDED:
        return CallbackEvent(state=CallbackState.FAILED, reason=job.reason, error=job.last_error)
    answer = session.one("last_answer", job_id=job.id)
    result = None if answer is None else result_in(answer[0])
    return CallbackEvent(state=CallbackState.DONE, reason=job.reason, result=result, artifacts=job.artifacts)


def _write_final(session: Session, job: Job, event: CallbackEvent, wanted: Callback) -> None:
    """Send the end of an ended job to one URL, with the number and instant that this event has."""
    row = session.one("last_callback", job_id=job.id)
    assert row is not None  # noqa: S101 - the caller has just read the job
    sequence, latest, model = row
    if sequence == 0:  # no event of this job was written yet
        completed = session.timestamp if job.completed_at is None else format_timestamp(job.completed_at)
        numbered = session.one("next_callback", job_id=job.id, state=event.state, at=completed)
        assert numbered is not None  # noqa: S101 - as above
        sequence, latest = numbered[0], completed
    body = encode_callback(
        event, job, attempt=job.attempt, timestamp=latest or session.timestamp, previous=None, model=model
    )
    write_delivery(session, job_id=job.id, sequence=sequence, state=event.state, url=wanted.url, body=body)
