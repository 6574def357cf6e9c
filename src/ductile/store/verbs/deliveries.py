"""The outbox of state webhooks: taken, tried, reported, sent again."""

from __future__ import annotations

from datetime import datetime

from ductile.core.jobs.model import LedgerEntry, LedgerKind
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.deliveries import (
    Delivery,
    DeliveryCapacity,
    DeliveryReport,
    DeliveryStatus,
    TakenDeliveries,
)
from ductile.store.notifier import OUTBOX_GREW
from ductile.store.rows import read_delivery, text_or_none
from ductile.store.session import Session
from ductile.store.verbs.ledger import write_ledger
from ductile.struct import replace

_KINDS = {
    DeliveryStatus.DELIVERED: LedgerKind.DELIVERY_DELIVERED,
    DeliveryStatus.DROPPED: LedgerKind.DELIVERY_DROPPED,
    DeliveryStatus.GONE: LedgerKind.DELIVERY_GONE,
}


def take_deliveries(session: Session, room: DeliveryCapacity, *, retry_at: datetime) -> TakenDeliveries:
    """Count the attempt before it is made: a crash while sending must not make it endless."""
    now = format_timestamp(session.now)
    taken: list[Delivery] = []
    slots = room.allocator()
    for receiver in slots.idle_first(receiver for (receiver,) in session.all("due_receivers", now=now)):
        if slots.left <= 0:
            break
        if (limit := slots.available(receiver)) > 0:
            rows = session.all("due_deliveries", receiver=receiver, now=now, limit=limit)
            taken += [read_delivery(row) for row in rows]
            slots.take(receiver, len(rows))
    for delivery in taken:
        session.run(
            "count_attempt",
            seq=delivery.seq,
            retry_at=format_timestamp(retry_at),
            retry_wait=_seconds_until(session, retry_at),
        )
    following = session.one("next_delivery_at", now=now)
    return TakenDeliveries(
        deliveries=tuple(replace(delivery, attempts=delivery.attempts + 1) for delivery in taken),
        next_due_at=parse_timestamp(following[0]) if following and following[0] else None,
    )


def report_delivery(session: Session, outcome: DeliveryReport) -> None:
    row = session.one("delivery_by_id", id=outcome.id)
    if row is None:
        return
    delivery = read_delivery(row)
    status = DeliveryStatus.PENDING
    if outcome.delivered:
        status = DeliveryStatus.DELIVERED
    elif outcome.retry_at is None:
        status = DeliveryStatus.GONE if outcome.gone else DeliveryStatus.DROPPED
    retry_at = outcome.retry_at if status is DeliveryStatus.PENDING else None
    session.run(
        "report_delivery",
        seq=delivery.seq,
        status=status,
        next_attempt_at=text_or_none(retry_at),
        retry_wait=None if retry_at is None else _seconds_until(session, retry_at),
        completed_at=None if status is DeliveryStatus.PENDING else session.timestamp,
        last_status=outcome.http_status,
        last_error=outcome.error,
        counts=int(outcome.counts),
    )
    if (kind := _KINDS.get(status)) is not None:
        # The URL may hold a secret; the job and the state tell which delivery it was.
        entry = LedgerEntry(
            kind=kind,
            job_id=delivery.job_id,
            data={"delivery": delivery.id, "state": delivery.state, "attempts": delivery.attempts},
        )
        write_ledger(session, (entry,))


def _seconds_until(session: Session, instant: datetime) -> float:
    return max(0.0, (instant - session.now).total_seconds())


def resend(session: Session, delivery_id: str) -> bool:
    found = session.one("resend_delivery", id=delivery_id, at=format_timestamp(session.now)) is not None
    if found:
        session.publish(OUTBOX_GREW)
    return found
