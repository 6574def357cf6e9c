"""Defaults that follow from other settings and from the machine, as `config get` shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ductile.config.compile_plugins import compile_retry
from ductile.config.compile_webhooks import scheme_of
from ductile.config.defaults import written_default
from ductile.config.names import endpoint_name
from ductile.core.durations import format_duration
from ductile.protocol.yaml12 import parse_yaml, to_plain

if TYPE_CHECKING:
    from ductile.config.keypath import KeyPath
    from ductile.config.load import LoadedConfig
    from ductile.config.shape import Key
    from ductile.core.json_values import JsonValue

_LITERAL = re.compile(r"`([^`]*)`")


def workers_in_force(loaded: LoadedConfig) -> int:
    return loaded.model.service.max_workers or max(1, loaded.machine.processors - 1)


def timezone_in_force(loaded: LoadedConfig) -> str:
    return loaded.model.service.timezone or loaded.machine.timezone


def default_in_force(loaded: LoadedConfig, path: KeyPath, key: Key) -> JsonValue:
    """The value that applies where a key is not set; in words where it is not one value."""
    match path:
        case ("service", "max_workers"):
            return workers_in_force(loaded)
        case ("service", "timezone") | ("plugins", _, "schedules", _, "timezone"):
            return timezone_in_force(loaded)
        case ("plugins", _, "schedule", "timezone"):
            return timezone_in_force(loaded)
        case ("plugin_roots",) if loaded.model.plugins_dir:
            return [loaded.model.plugins_dir]
        case ("plugins", str(name), "uses"):
            return name
        case ("plugins", str(name), "retry", str(field)):
            return _retry(loaded, name, field)
        case ("webhooks", "endpoints", int(index), "name"):
            return endpoint_name(loaded.model.webhooks.endpoints[index])
        case ("webhooks", "endpoints", int(index), "signature_header"):
            return scheme_of(loaded.model.webhooks.endpoints[index]).header
        case _:
            return _as_written(key)


def _retry(loaded: LoadedConfig, plugin: str, field: str) -> JsonValue:
    settings = loaded.model.plugins[plugin]
    policy = compile_retry(settings.retry, max_attempts=settings.max_attempts)
    values: dict[str, JsonValue] = {
        "max_attempts": policy.max_attempts,
        "backoff_base": format_duration(policy.backoff_base),
        "backoff_max": format_duration(policy.backoff_max),
    }
    return values[field]


def _as_written(key: Key) -> JsonValue:
    if key.default_in_words is None:
        return written_default(key)
    literal = _LITERAL.fullmatch(key.default_in_words)
    if literal is None:
        return key.default_in_words.replace("`", "")
    return to_plain(parse_yaml(literal[1], file="a default"))
