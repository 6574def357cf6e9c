"""State webhooks in the outbox."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from ductile.core.jobs.model import JobReason
from ductile.core.webhooks.deliveries import ConcurrencyLimit, DeliveryAttempt, ReceiverHealth, SlotAllocator
from ductile.struct import Value, field


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DROPPED = "dropped"
    GONE = "gone"  # the receiver answered 410


class Delivery(Value):
    """A state webhook in the outbox."""

    seq: int
    id: str
    job_id: str
    sequence: int
    state: str
    url: str
    #: Scheme, host and port of the URL.
    receiver: str
    body: str
    status: DeliveryStatus
    attempts: int
    next_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    created_at: datetime
    completed_at: datetime | None


class DeliveryFilter(Value):
    job_id: str | None = None
    status: DeliveryStatus | None = None
    plugin: str | None = None
    command: str | None = None
    pipeline: str | None = None
    #: Why the job changed to the state that is sent.
    reason: JobReason | None = None
    #: A text in the last error.
    query: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    #: Deliveries about jobs that this access token started, and about jobs that follow from them.
    token: str | None = None


ALL_DELIVERIES = DeliveryFilter()


class LostDeliveries(Value):
    """State webhooks to one receiver that were given up."""

    receiver: str
    dropped: int
    gone: int
    latest_id: str
    last_error: str | None


class DeliveryCapacity(Value):
    """The most deliveries to claim: in total, and for each receiver, less those in flight (`busy`)."""

    total: int
    per_receiver: int
    busy: Mapping[str, int] = field(default_factory=dict)
    #: The health of receivers, and the limits that replace `per_receiver` by health.
    health: Mapping[str, ReceiverHealth] = field(default_factory=dict)
    limits: Mapping[ReceiverHealth, ConcurrencyLimit] = field(default_factory=dict)

    def allocator(self) -> SlotAllocator:
        return SlotAllocator(
            free=self.total,
            per_receiver=self.per_receiver,
            busy=self.busy,
            health=self.health,
            limits=self.limits,
        )


class ClaimedDeliveries(Value):
    """Deliveries to send now, and when the next one becomes due by time alone."""

    deliveries: tuple[Delivery, ...]
    next_due_at: datetime | None


class DeliveryReport(Value):
    """The result of one attempt. After a failure, `retry_at` None gives the delivery up."""

    id: str
    attempt: DeliveryAttempt
    retry_at: datetime | None = None
    #: False if a stop of the daemon cut the attempt off: it does not count.
    counts: bool = True
    #: How many attempts were counted when this one was made. None: the latest attempt is meant.
    attempts: int | None = None
