"""Reads single values of a plugin's configuration. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ductile_sdk import ConfigFailure


def read_number(config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a positive number of the configuration."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigFailure(f"`{key}` in the plugin's config has to be a number above 0, not {value!r}")
    return float(value)


def read_text(config: Mapping[str, Any], key: str, default: str | None = None) -> str | None:
    value = config.get(key, default)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ConfigFailure(f"`{key}` in the plugin's config has to be a text")
    return value
