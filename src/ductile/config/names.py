"""Which names may be given to plugins and pipelines, and how a target is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ductile.config.schema.model import ApiTokenSettings, WebhookEndpointSettings

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Words that stand for something else in a scope, a source or a path of the API.
RESERVED = frozenset("pipeline core plugin jobs events system read api hook ductile".split())  # noqa: SIM905 - a sentence of names reads better than ten quoted ones
#: Sources of events that are not plugins: whoever may publish one from outside.
EXTERNAL_SOURCES = frozenset(("api", "cli", "webhook"))
_DIGITS_OF_A_DIGEST = 8


def name_error(name: str) -> str | None:
    """What is wrong with a name, in words that follow it; None if nothing is."""
    if name in RESERVED:
        return "is reserved"
    if not NAME.fullmatch(name):
        return "has to begin with a letter and go on with letters, digits, _ and -"
    return None


def endpoint_name(endpoint: WebhookEndpointSettings) -> str:
    """What a webhook is called: as it says, or as the last part of its path does."""
    return endpoint.name or endpoint.path.rstrip("/").rpartition("/")[2]


def api_token_name(token: ApiTokenSettings) -> str:
    """What a token is called: as it says, or as its digest begins.

    A position would not do. What a caller may repeat is remembered by this name, and it has to be
    the same caller's whatever tokens come and go before it.
    """
    return token.name or f"api-token-{token.token.digest().hex()[:_DIGITS_OF_A_DIGEST]}"


def parse_target(text: str) -> tuple[str, str]:
    """`plugin.command` as its two parts; without a command it is `handle`."""
    plugin, _, command = text.partition(".")
    return plugin, command or "handle"
