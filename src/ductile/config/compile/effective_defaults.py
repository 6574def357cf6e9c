"""Defaults that follow from other settings and from the machine, as `config get` shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ductile.config.compile.plugins import compile_retry
from ductile.config.compile.webhooks import scheme_of
from ductile.config.names import endpoint_name
from ductile.config.schema.fields import written_default
from ductile.core.durations import format_duration
from ductile.protocol.yaml import parse_yaml, to_plain

if TYPE_CHECKING:
    from ductile.config.key_paths import KeyPath
    from ductile.config.load import LoadedConfig
    from ductile.config.schema.fields import SettingKey
    from ductile.core.json import JsonValue

_LITERAL = re.compile(r"`([^`]*)`")


def effective_workers(loaded: LoadedConfig) -> int:
    return loaded.model.service.max_workers or max(1, loaded.machine.processors - 1)


def effective_timezone(loaded: LoadedConfig) -> str:
    return loaded.model.service.timezone or loaded.machine.timezone


def effective_default(loaded: LoadedConfig, path: KeyPath, key: SettingKey) -> JsonValue:
    """The value that applies where a key is not set; in words where it is not one value."""
    match path:
        case ("service", "max_workers"):
            return effective_workers(loaded)
        case ("service", "timezone") | ("plugins", _, "schedules", _, "timezone"):
            return effective_timezone(loaded)
        case ("plugins", _, "schedule", "timezone"):
            return effective_timezone(loaded)
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


def _as_written(key: SettingKey) -> JsonValue:
    if key.default_text is None:
        return written_default(key)
    literal = _LITERAL.fullmatch(key.default_text)
    if literal is None:
        return key.default_text.replace("`", "")
    return to_plain(parse_yaml(literal[1], file="a default"))
