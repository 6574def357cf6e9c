"""Names of plugins, pipelines and variables, and the form of a target."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: Words with another meaning in a scope, an event source or a path of the API.
RESERVED = frozenset("pipeline core plugin jobs own events system read api hook ductile".split())  # noqa: SIM905 - a sentence of names reads better than ten quoted ones
#: Sources of events that are not plugins.
EXTERNAL_SOURCES = frozenset(("api", "cli", "webhook"))


def name_error(name: str) -> str | None:
    """Return the fault in a name, in words that follow it; None if it is valid."""
    if name in RESERVED:
        return "is reserved"
    if not NAME.fullmatch(name):
        return "has to begin with a letter or _, followed by letters, digits, _ and -"
    return None


def parse_target(text: str) -> tuple[str, str]:
    """Split `plugin.command`; without a command it is `handle`."""
    plugin, _, command = text.partition(".")
    return plugin, command or "handle"
