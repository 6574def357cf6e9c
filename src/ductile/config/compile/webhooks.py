"""A checked webhook endpoint, compiled: where its requests go and how they are signed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.names import endpoint_name
from ductile.config.schema.model import WebhookPreset
from ductile.config.snapshot import EventTarget, PipelineTarget, PluginTarget, WebhookEndpoint, WebhookTarget
from ductile.core.webhooks.signatures import GITHUB, SLACK, STANDARD, STRIPE, SignatureScheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.config.schema.model import WebhookEndpointSettings
    from ductile.config.secrets import Secret

_PRESETS = {
    WebhookPreset.GITHUB: GITHUB,
    # GitLab signs as Standard Webhooks has it; its older secret token is no signature.
    WebhookPreset.GITLAB: STANDARD,
    WebhookPreset.STRIPE: STRIPE,
    WebhookPreset.SLACK: SLACK,
    WebhookPreset.STANDARD_WEBHOOKS: STANDARD,
}


def compile_endpoint(endpoint: WebhookEndpointSettings, secrets: Mapping[str, Secret]) -> WebhookEndpoint:
    return WebhookEndpoint(
        name=endpoint_name(endpoint),
        path=endpoint.path,
        target=_target(endpoint),
        secret=endpoint.secret or secrets[endpoint.secret_ref or ""],
        max_body_size=endpoint.max_body_size,
        preset=endpoint.preset,
        scheme=scheme_of(endpoint),
    )


def scheme_of(endpoint: WebhookEndpointSettings) -> SignatureScheme:
    """How requests to an endpoint are signed: as its preset says, or as GitHub does, and its own headers."""
    known = GITHUB if endpoint.preset is None else _PRESETS[endpoint.preset]
    delivery = endpoint.delivery_header
    if delivery is None and endpoint.preset is not None:
        delivery = known.delivery_header
    return SignatureScheme(
        form=known.form,
        header=(endpoint.signature_header or known.header).lower(),
        delivery_header=None if delivery is None else delivery.lower(),
        delivery_field=known.delivery_field,
        known_by_content=endpoint.preset is not None and known.known_by_content,
    )


def _target(endpoint: WebhookEndpointSettings) -> WebhookTarget:
    if endpoint.plugin is not None:
        return PluginTarget(plugin=endpoint.plugin, command=endpoint.command or "handle")
    if endpoint.pipeline is not None:
        return PipelineTarget(pipeline=endpoint.pipeline)
    return EventTarget(event_type=endpoint.event or "")
