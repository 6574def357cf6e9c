"""Names of plugins, pipelines, endpoints and tokens, and the form of a target."""

from __future__ import annotations

import re

from ductile.config.schema.model import ApiTokenSettings, WebhookEndpointSettings

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Words with another meaning in a scope, an event source or a path of the API.
RESERVED = frozenset("pipeline core plugin jobs events system read api hook ductile".split())  # noqa: SIM905 - a sentence of names reads better than ten quoted ones
#: Sources of events that are not plugins.
EXTERNAL_SOURCES = frozenset(("api", "cli", "webhook"))
_NAME_DIGITS = 8


def name_error(name: str) -> str | None:
    """Return the fault in a name, in words that follow it; None if it is valid."""
    if name in RESERVED:
        return "is reserved"
    if not NAME.fullmatch(name):
        return "has to begin with a letter or _, followed by letters, digits, _ and -"
    return None


def endpoint_name(endpoint: WebhookEndpointSettings) -> str:
    """Return the `name` of a webhook, or the last part of its path."""
    return endpoint.name or endpoint.path.rstrip("/").rpartition("/")[2]


def api_token_name(token: ApiTokenSettings) -> str:
    """Return the `name` of a token, or one made from its digest.

    The position in the list would not be stable: idempotency keys are remembered by this name, and it must
    not change when other tokens are added or removed.
    """
    return token.name or f"api-token-{token.token.digest().hex()[:_NAME_DIGITS]}"


def parse_target(text: str) -> tuple[str, str]:
    """Split `plugin.command`; without a command it is `handle`."""
    plugin, _, command = text.partition(".")
    return plugin, command or "handle"
