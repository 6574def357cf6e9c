"""Deliveries of state webhooks: list them, send one again."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta

from ductile.core.webhooks.url_policy import redact_url
from ductile.errors import ConflictError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.request import Cursor, DryRun, PageLimit
from ductile.operations.response import Id, NextCursor, Response, Timestamp, WasDryRun, from_record
from ductile.store.model.deliveries import DeliveryStatus
from ductile.store.model.records import DEFAULT_PAGE
from ductile.struct import Value


class ListDeliveries(Value):
    job_id: Annotated[str | None, Meta(description="Only those of this job.")] = None
    status: Annotated[DeliveryStatus | None, Meta(description="Only those in this status.")] = None
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None


class ListedDelivery(Value):
    """A delivery without its body, which may be large."""

    id: Id
    job_id: Id
    sequence: int
    state: str
    url: Annotated[str, Meta(description="Its scheme and host only: the rest may be secret.")]
    status: DeliveryStatus
    attempts: int
    next_attempt_at: Timestamp | None
    last_status: int | None
    last_error: str | None
    created_at: Timestamp
    completed_at: Timestamp | None


class DeliveryPage(Response):
    deliveries: tuple[ListedDelivery, ...]
    next_cursor: NextCursor


class ResendDelivery(Value):
    delivery_id: Annotated[str, Meta(description="The delivery.")]
    dry_run: DryRun = False


class DeliveryResent(Response):
    id: Id
    job_id: Id
    state: str
    dry_run: WasDryRun = UNSET


async def list_deliveries(context: OperationContext, request: ListDeliveries) -> DeliveryPage:
    page = await context.store.deliveries(
        job_id=request.job_id, status=request.status, limit=request.limit, cursor=request.cursor
    )
    return DeliveryPage(
        deliveries=tuple(from_record(ListedDelivery, row, url=redact_url(row.url)) for row in page.rows),
        next_cursor=page.next_cursor,
    )


async def resend_delivery(context: OperationContext, request: ResendDelivery) -> DeliveryResent:
    """Send a delivery again, unchanged. Raises `ConflictError` if it is still pending."""
    found = await context.store.delivery(request.delivery_id)
    if found is None:
        raise NotFoundError(
            f"there is no delivery {request.delivery_id}", hint="ductile webhook deliveries lists them."
        )
    if found.status is DeliveryStatus.PENDING:
        raise ConflictError("the delivery is pending: it will be sent anyway")
    if request.dry_run:
        return from_record(DeliveryResent, found, dry_run=True)
    await context.store.resend(found.id)
    return from_record(DeliveryResent, found)
