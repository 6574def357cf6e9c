"""State webhooks: subscriptions of jobs, and the outbox of deliveries. See docs/reference/webhooks.md."""

from __future__ import annotations

import re
from datetime import datetime

from ductile.core.ids import make_id
from ductile.core.jobs.model import TERMINAL, Job, JobStatus, LedgerKind, NewJob, StateSubscription
from ductile.core.jobs.settlement import StateChange, WebhookState
from ductile.core.json import JsonObject
from ductile.core.timestamps import format_timestamp
from ductile.core.webhooks.deliveries import (
    MAX_SUBSCRIPTIONS,
    StateChoice,
    event_timestamp,
    includes_state,
    merge_choices,
)
from ductile.core.webhooks.url_policy import receiver_of
from ductile.protocol.state_webhook import encode_state_webhook
from ductile.store.model.deliveries import (
    ALL_DELIVERIES,
    ClaimedDeliveries,
    Delivery,
    DeliveryCapacity,
    DeliveryFilter,
    DeliveryReport,
    DeliveryStatus,
    LostDeliveries,
)
from ductile.store.model.records import Page
from ductile.store.notifier import DELIVERIES_DUE
from ductile.store.rows import (
    NEWEST,
    find_job,
    format_states,
    instant_or_none,
    last_result,
    parse_states,
    read_delivery,
    read_page,
    row_reader,
    timestamp_or_none,
)
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.ledger import append_ledger
from ductile.struct import asdict, replace

_read_lost = row_reader(LostDeliveries)

_LEDGER_KINDS = {
    DeliveryStatus.DELIVERED: LedgerKind.DELIVERY_DELIVERED,
    DeliveryStatus.DROPPED: LedgerKind.DELIVERY_DROPPED,
    DeliveryStatus.GONE: LedgerKind.DELIVERY_GONE,
}

# -- events of a job


def write_state_webhooks(session: Session, change: StateChange, job: NewJob | Job, *, attempt: int) -> None:
    """Put a state webhook into the outbox for each URL that is subscribed to this state.

    The body is final. The event is numbered among the job's even if no URL is subscribed to it.
    """
    row = session.fetch_one("callback_of_job", job_id=job.id)
    if row is None:
        return
    state, _sequence, latest, first_url, model, first_states = row
    timestamp = event_timestamp(session.timestamp, latest)
    sequence = session.fetch_value("next_callback", job_id=job.id, state=change.state, at=timestamp)
    subscriptions = [(first_url, first_states), *session.fetch_all("further_subscriptions", job_id=job.id)]
    urls = [
        url for url, choice in subscriptions if url and includes_state(parse_states(choice), change.state)
    ]
    if not urls:
        return
    body = encode_state_webhook(
        change, job, attempt=attempt, timestamp=timestamp, previous_state=state, model=model
    )
    for url in urls:
        _insert_delivery(session, job, sequence, change.state, url, body)


def _insert_delivery(
    session: Session, job: NewJob | Job, sequence: int, state: str, url: str, body: str
) -> None:
    session.execute(
        "insert_delivery",
        id=make_id(session.now, session.rng),
        job_id=job.id,
        token=job.token,
        sequence=sequence,
        state=state,
        url=url,
        receiver=receiver_of(url),
        body=body,
        # Due by the clock: the timestamp may be ahead of it after the clock was set back.
        due_at=format_timestamp(session.now),
        at=session.timestamp,
    )
    session.publish(DELIVERIES_DUE)


# -- subscriptions


def callback_columns(callback: StateSubscription) -> dict[str, SqlValue]:
    """Return the columns of the first subscription, which the job's own row holds."""
    return {
        "callback_url": callback.url,
        "callback_model": callback.model,
        "callback_events": format_states(callback.events),
    }


def put_subscription(session: Session, job_id: str, subscription: StateSubscription) -> None:
    """Write a further subscription of a job. The first one is in the job's own row."""
    states = format_states(subscription.events)
    session.execute("put_subscription", job_id=job_id, url=subscription.url, events=states)


def subscribe(session: Session, job_id: str, subscription: StateSubscription) -> bool:
    """Subscribe the URL of a duplicate to the existing job; an ended job sends its end at once.

    A URL that is subscribed already gets the states of both submissions, each once. Returns False, and
    changes nothing, if the job has the maximum number of subscriptions.
    """
    job = find_job(session, job_id)
    if job is None:
        return False
    before: StateChoice = None
    if job.callback is not None and job.callback.url == subscription.url:
        is_known, before = True, job.callback.events
    else:
        row = session.fetch_one("subscription", job_id=job.id, url=subscription.url)
        is_known, before = row is not None, None if row is None else parse_states(row[0])
    if not is_known and session.fetch_all("further_subscriptions", job_id=job.id)[MAX_SUBSCRIPTIONS - 2 :]:
        return False
    merged = merge_choices(before, subscription.events) if is_known else subscription.events
    if job.callback is None or job.callback.url == subscription.url:
        # The model of the existing job is kept: a duplicate may have another payload.
        model = subscription.model if job.callback is None else job.callback.model
        first = StateSubscription(url=subscription.url, model=model, events=merged)
        session.execute("set_callback", job_id=job.id, **callback_columns(first))
    else:
        put_subscription(session, job.id, replace(subscription, events=merged))
    if job.status in TERMINAL:
        if job.status is JobStatus.SUCCEEDED:
            result = last_result(session, job.id)
            change = StateChange(
                state=WebhookState.DONE, reason=job.reason, result=result, artifacts=job.artifacts
            )
        else:
            change = StateChange(state=WebhookState.FAILED, reason=job.reason, error=job.last_error)
        if includes_state(merged, change.state) and not (is_known and includes_state(before, change.state)):
            _send_end(session, job, change, subscription.url)
    return True


def _send_end(session: Session, job: Job, change: StateChange, url: str) -> None:
    """Send the end of an ended job to one URL, with the number and instant of that event."""
    row = session.fetch_one("callback_of_job", job_id=job.id)
    assert row is not None  # noqa: S101 - the caller has just read the job
    _state, sequence, latest, _url, model, _states = row
    if sequence == 0:  # no event of this job was written yet
        latest = session.timestamp if job.completed_at is None else format_timestamp(job.completed_at)
        sequence = session.fetch_value("next_callback", job_id=job.id, state=change.state, at=latest)
    at = latest or session.timestamp
    body = encode_state_webhook(
        change, job, attempt=job.attempt, timestamp=at, previous_state=None, model=model
    )
    _insert_delivery(session, job, sequence, change.state, url, body)


# -- deliveries


def claim_deliveries(
    session: Session, capacity: DeliveryCapacity, *, retry_at: datetime
) -> ClaimedDeliveries:
    """Claim due deliveries, each counted as attempted and due again at `retry_at` if the daemon dies.

    No receiver gets more than its own capacity, and none waits for another; receivers without a delivery in
    flight come first. The first attempts for one job are claimed in order: each of them after the result of
    the one before was reported.
    """
    now = format_timestamp(session.now)
    taken: list[Delivery] = []
    slots = capacity.allocator()
    for receiver in slots.idle_first(receiver for (receiver,) in session.fetch_all("due_receivers", now=now)):
        if slots.free <= 0:
            break
        if (limit := slots.available(receiver)) > 0:
            rows = session.fetch_all("due_deliveries", receiver=receiver, now=now, limit=limit)
            taken += map(read_delivery, rows)
            slots.take(receiver, len(rows))
    # An attempt is counted before it is made: a crash while sending must not make the attempts endless.
    retry = {"retry_at": format_timestamp(retry_at), "retry_wait": _seconds_until(session, retry_at)}
    for claimed in taken:
        session.execute("count_attempt", seq=claimed.seq, **retry)
    return ClaimedDeliveries(
        deliveries=tuple(replace(claimed, attempts=claimed.attempts + 1) for claimed in taken),
        next_due_at=instant_or_none(session.fetch_value("next_delivery_at", now=now)),
    )


def report_delivery(session: Session, report: DeliveryReport) -> None:
    """Record the result of one attempt. Ignores an unknown delivery, and a report that comes too late."""
    delivery = get_delivery(session, report.id)
    if delivery is None or _is_late(report, delivery):
        return
    status, retry_at = DeliveryStatus.PENDING, report.retry_at
    if report.attempt.delivered:
        status, retry_at = DeliveryStatus.DELIVERED, None
    elif retry_at is None:
        status = DeliveryStatus.GONE if report.attempt.gone else DeliveryStatus.DROPPED
    session.execute(
        "report_delivery",
        seq=delivery.seq,
        status=status,
        next_attempt_at=timestamp_or_none(retry_at),
        retry_wait=None if retry_at is None else _seconds_until(session, retry_at),
        completed_at=None if status is DeliveryStatus.PENDING else session.timestamp,
        last_status=report.attempt.http_status,
        last_error=report.attempt.error,
        counts=int(report.counts),
    )
    if (kind := _LEDGER_KINDS.get(status)) is not None:
        # Without the URL, which may hold a secret: job and state identify the delivery.
        data: JsonObject = {"delivery": delivery.id, "state": delivery.state, "attempts": delivery.attempts}
        append_ledger(session, kind, data, job_id=delivery.job_id)


def _is_late(report: DeliveryReport, delivery: Delivery) -> bool:
    """Return whether the report comes too late: another node has sent the delivery again since.

    A report of success is too late only if success was reported before.
    """
    if report.attempt.delivered:
        return delivery.status is DeliveryStatus.DELIVERED
    is_pending = delivery.status is DeliveryStatus.PENDING
    return not is_pending or report.attempts not in (None, delivery.attempts)


def _seconds_until(session: Session, instant: datetime) -> float:
    return max(0.0, (instant - session.now).total_seconds())


def resend(session: Session, delivery_id: str) -> bool:
    """Make a completed delivery due again, with fresh attempts. Returns False if there is none."""
    resent = (
        session.fetch_one("resend_delivery", id=delivery_id, at=format_timestamp(session.now)) is not None
    )
    if resent:
        session.publish(DELIVERIES_DUE)
    return resent


def get_delivery(session: Session, delivery_id: str) -> Delivery | None:
    row = session.fetch_one("delivery_by_id", id=delivery_id)
    return None if row is None else read_delivery(row)


def list_deliveries(
    session: Session, where: DeliveryFilter = ALL_DELIVERIES, *, limit: int, cursor: str | None = None
) -> Page[Delivery]:
    """Return deliveries, newest first."""
    undelivered = where.status in (DeliveryStatus.DROPPED, DeliveryStatus.GONE)
    query = "deliveries_undelivered" if undelivered else "deliveries"
    if where.token is not None:
        query = "deliveries_of_token"
    if where.job_id is not None:
        query = "deliveries_of_job"
    return read_page(session, query, _filter_values(where), read_delivery, limit=limit, cursor=cursor)


def count_deliveries(session: Session, where: DeliveryFilter, *, limit: int) -> int:
    """Return how many deliveries match, counted up to `limit`."""
    undelivered = where.status in (DeliveryStatus.DROPPED, DeliveryStatus.GONE)
    query = "count_deliveries_undelivered" if undelivered else "count_deliveries_found"
    if where.token is not None:
        query = "count_deliveries_of_token"
    return int(session.fetch_value(query, **_filter_values(where), before=NEWEST, limit=limit))


def _filter_values(where: DeliveryFilter) -> dict[str, SqlValue]:
    text = None if where.query is None else re.sub(r"([%_\\])", r"\\\1", where.query.lower())
    return asdict(where) | {
        "query": None if text is None else f"%{text}%",
        "created_from": timestamp_or_none(where.created_from),
        "created_before": timestamp_or_none(where.created_before),
    }


def lost_deliveries(session: Session, *, since: datetime, limit: int) -> tuple[LostDeliveries, ...]:
    """Return the state webhooks that were given up since an instant, by receiver, the most first."""
    rows = session.fetch_all("lost_deliveries", since=format_timestamp(since), limit=limit)
    return tuple(map(_read_lost, rows))
