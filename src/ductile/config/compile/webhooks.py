"""Compiles a webhook endpoint: the target of its requests and their signature scheme. Pure."""

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
    # GitLab signs as Standard Webhooks defines; its older secret token is not a signature.
    WebhookPreset.GITLAB: STANDARD,
    WebhookPreset.STRIPE: STRIPE,
    WebhookPreset.SLACK: SLACK,
    WebhookPreset.STANDARD_WEBHOOKS: STANDARD,
}


def compile_endpoint(endpoint: WebhookEndpointSettings, secrets: Mapping[str, Secret]) -> WebhookEndpoint:
    target: WebhookTarget = EventTarget(event_type=endpoint.event or "")
    if endpoint.plugin is not None:
        target = PluginTarget(plugin=endpoint.plugin, command=endpoint.command or "handle")
    elif endpoint.pipeline is not None:
        target = PipelineTarget(pipeline=endpoint.pipeline)
    return WebhookEndpoint(
        name=endpoint_name(endpoint),
        path=endpoint.path,
        target=target,
        secret=endpoint.secret or secrets[endpoint.secret_ref or ""],
        max_body_size=endpoint.max_body_size,
        preset=endpoint.preset,
        scheme=signature_scheme(endpoint),
    )


def signature_scheme(endpoint: WebhookEndpointSettings) -> SignatureScheme:
    """Return the preset's scheme, or GitHub's without a preset, with the headers that the endpoint names."""
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
