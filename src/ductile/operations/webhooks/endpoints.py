"""The configured webhook endpoints: find one, list them."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta

from ductile.config.snapshot import EventTarget, PipelineTarget, PluginTarget, Snapshot, WebhookEndpoint
from ductile.core.suggest import did_you_mean
from ductile.errors import ConfigError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.response import Response
from ductile.struct import Value


class ListWebhooks(Value):
    pass


class ListedEndpoint(Value):
    """Of `plugin`, `pipeline` and `event` one is set: what the endpoint starts."""

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


class EndpointChanges(Value):
    """Names of endpoints that a reload would change, or the error that would prevent it."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    error: str | None = None


class WebhookList(Response):
    loaded: Annotated[bool, Meta(description="Whether a daemon has these endpoints in force.")]
    listen: str | None
    endpoints: tuple[ListedEndpoint, ...]
    on_disk: Annotated[
        EndpointChanges | None, Meta(description="How the configuration on disk differs; null if not.")
    ]


def find_endpoint(snapshot: Snapshot, path: str) -> WebhookEndpoint:
    for endpoint in snapshot.webhooks:
        if endpoint.path == path:
            return endpoint
    raise NotFoundError("there is no webhook at this path")


def named_endpoint(snapshot: Snapshot, name: str) -> WebhookEndpoint:
    """The endpoint with this name or path. Raises `NotFoundError`."""
    for endpoint in snapshot.webhooks:
        if name in (endpoint.name, endpoint.path):
            return endpoint
    known = [endpoint.name for endpoint in snapshot.webhooks]
    raise NotFoundError(f"there is no webhook {name}", hint=did_you_mean(name, known))


async def list_webhooks(context: OperationContext, _request: ListWebhooks) -> WebhookList:
    snapshot = context.snapshot()
    return WebhookList(
        loaded=context.engine is not None,
        listen=snapshot.webhooks_listen if snapshot.webhooks_enabled else None,
        endpoints=tuple(_listed(endpoint) for endpoint in snapshot.webhooks),
        on_disk=await _changes_on_disk(context, snapshot),
    )


def _listed(endpoint: WebhookEndpoint) -> ListedEndpoint:
    target = endpoint.target
    return ListedEndpoint(
        name=endpoint.name,
        path=endpoint.path,
        plugin=target.plugin if isinstance(target, PluginTarget) else None,
        command=target.command if isinstance(target, PluginTarget) else None,
        pipeline=target.pipeline if isinstance(target, PipelineTarget) else None,
        event=target.event_type if isinstance(target, EventTarget) else None,
        preset=endpoint.preset,
        signature_header=endpoint.scheme.header,
        delivery_header=endpoint.scheme.delivery_header,
        max_body_size=endpoint.max_body_size,
    )


async def _changes_on_disk(context: OperationContext, in_force: Snapshot) -> EndpointChanges | None:
    if context.load is None:
        return None
    try:
        new = await asyncio.to_thread(context.load)
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
