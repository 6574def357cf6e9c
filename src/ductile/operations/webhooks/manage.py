"""Webhooks for operators: the endpoints, and the deliveries of state webhooks."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import UNSET

from ductile.config.snapshot import (
    PipelineTarget,
    PluginTarget,
    PublishTarget,
    Snapshot,
    WebhookEndpoint,
    WebhookTarget,
)
from ductile.core.suggest import did_you_mean
from ductile.core.webhooks.url_policy import redact_url
from ductile.errors import ConfigError, ConflictError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import resolve_filter
from ductile.operations.request import Cursor, DryRun, NoFields, PageLimit
from ductile.operations.response import Id, NextCursor, Response, Timestamp, WasDryRun, from_record
from ductile.operations.webhooks.refusals import RefusedRequests
from ductile.store.model.deliveries import DeliveryFilter, DeliveryStatus
from ductile.store.model.records import DEFAULT_PAGE
from ductile.struct import Value, about


class ListedEndpoint(Value):
    """An endpoint. It starts a `plugin`, a `pipeline` or an `event`; the other two are null."""

    name: str
    path: str
    plugin: str | None
    command: str | None
    pipeline: str | None
    event: str | None
    preset: str | None
    signature_header: str
    delivery_header: str | None
    max_body_size: int
    refused: Annotated[
        RefusedRequests | None, about("Requests that it has refused; null if there were none.")
    ]


class EndpointChanges(Value):
    """Names of endpoints that a reload would change, or the error that would prevent it."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    error: str | None = None


class WebhookList(Response):
    loaded: Annotated[bool, about("Whether a daemon has these endpoints in force.")]
    listen: str | None
    endpoints: tuple[ListedEndpoint, ...]
    on_disk: Annotated[EndpointChanges | None, about("How the configuration on disk differs; null if not.")]


def find_endpoint(snapshot: Snapshot, path: str) -> WebhookEndpoint:
    """Return the endpoint at this path. Raises `NotFoundError`."""
    for endpoint in snapshot.webhooks:
        if endpoint.path == path:
            return endpoint
    raise NotFoundError("there is no webhook at this path")


def named_endpoint(snapshot: Snapshot, name: str) -> WebhookEndpoint:
    """Return the endpoint with this name or path. Raises `NotFoundError`."""
    for endpoint in snapshot.webhooks:
        if name in (endpoint.name, endpoint.path):
            return endpoint
    known = [endpoint.name for endpoint in snapshot.webhooks]
    raise NotFoundError(f"there is no webhook {name}", hint=did_you_mean(name, known))


async def list_webhooks(context: OperationContext, _request: NoFields) -> WebhookList:
    """Return the endpoints in force, and how those of the configuration on disk differ."""
    snapshot, refusals = context.snapshot(), context.webhook_refusals
    return WebhookList(
        loaded=context.engine is not None,
        listen=snapshot.webhooks_listen if snapshot.webhooks_enabled else None,
        endpoints=tuple(
            from_record(
                ListedEndpoint,
                endpoint,
                **target_fields(endpoint.target),
                signature_header=endpoint.scheme.header,
                delivery_header=endpoint.scheme.delivery_header,
                refused=None if refusals is None else refusals.of(endpoint.name),
            )
            for endpoint in snapshot.webhooks
        ),
        on_disk=await _changes_on_disk(context, snapshot),
    )


def target_fields(target: WebhookTarget) -> dict[str, str | None]:
    """Return the fields of a response that say what an endpoint starts. Those of other targets are None."""
    none: dict[str, str | None] = dict.fromkeys(("plugin", "command", "pipeline", "event"))
    match target:
        case PluginTarget(plugin=plugin, command=command):
            return none | {"plugin": plugin, "command": command}
        case PipelineTarget(pipeline=pipeline):
            return none | {"pipeline": pipeline}
        case PublishTarget(event_type=event_type):
            return none | {"event": event_type}


async def _changes_on_disk(context: OperationContext, in_force: Snapshot) -> EndpointChanges | None:
    """Return how the endpoints on disk differ from those in force; None if they do not or no daemon runs."""
    if context.load_from_disk is None:
        return None
    try:
        new = await asyncio.to_thread(context.load_from_disk)
    except ConfigError as error:
        return EndpointChanges(error=error.message)
    before = {endpoint.name: endpoint for endpoint in in_force.webhooks}
    after = {endpoint.name: endpoint for endpoint in new.webhooks}
    changes = EndpointChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if after[name] != before[name])),
        removed=tuple(sorted(before.keys() - after.keys())),
    )
    same = changes == EndpointChanges() and new.webhooks_enabled == in_force.webhooks_enabled
    return None if same else changes


# -------------------------------------------------------------------------------- state webhooks sent


class ListDeliveries(Value):
    job_id: Annotated[str | None, about("Only those of this job.")] = None
    status: Annotated[DeliveryStatus | None, about("Only those in this status.")] = None
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None


class ListedDelivery(Value):
    """A delivery without its body, which may be large."""

    id: Id
    job_id: Id
    sequence: int
    state: str
    url: Annotated[str, about("Its scheme and host only: the rest may be secret.")]
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
    delivery_id: Annotated[str, about("The delivery.")]
    dry_run: DryRun = False


class DeliveryResent(Response):
    id: Id
    job_id: Id
    state: str
    dry_run: WasDryRun = UNSET


async def list_deliveries(context: OperationContext, request: ListDeliveries) -> DeliveryPage:
    """Return a page of deliveries, newest first."""
    delivery_filter = DeliveryFilter(
        job_id=await resolve_filter(context, request.job_id), status=request.status
    )
    page = await context.store.list_deliveries(delivery_filter, limit=request.limit, cursor=request.cursor)
    return DeliveryPage(
        deliveries=tuple(from_record(ListedDelivery, row, url=redact_url(row.url)) for row in page.rows),
        next_cursor=page.next_cursor,
    )


async def resend_delivery(context: OperationContext, request: ResendDelivery) -> DeliveryResent:
    """Send a delivery again, unchanged. Raises `ConflictError` if it is still pending."""
    delivery = await context.store.get_delivery(request.delivery_id)
    if delivery is None:
        raise NotFoundError(
            f"there is no delivery {request.delivery_id}", hint="ductile webhook deliveries lists them."
        )
    if delivery.status is DeliveryStatus.PENDING:
        raise ConflictError("the delivery is pending: it will be sent anyway")
    if not request.dry_run:
        await context.store.resend(delivery.id)
    return from_record(DeliveryResent, delivery, dry_run=request.dry_run or UNSET)
