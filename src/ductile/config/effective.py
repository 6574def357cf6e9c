"""A configuration as it takes effect: the values as written, and the defaults of the other keys."""

from __future__ import annotations

import re

from ductile.config.compile.compiler import signature_scheme
from ductile.config.compile.plugins import compile_retry
from ductile.config.load import LoadedConfig
from ductile.config.names import endpoint_name
from ductile.config.schema.fields import (
    FieldType,
    ListOf,
    MapOf,
    SectionOf,
    SettingKey,
    keys_of,
    written_default,
)
from ductile.core.durations import format_duration
from ductile.core.json import JsonValue
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import KeyPath, to_plain

_LITERAL = re.compile(r"`([^`]*)`")


def fill_in_defaults(written: JsonValue, field_type: FieldType) -> JsonValue:
    """Return the values with defaults, keys in the order of the model. Keys without a default stay absent."""
    match field_type, written:
        case SectionOf(section=section), dict():
            filled: dict[str, JsonValue] = {}
            for key in keys_of(section):
                value = written.get(key.name)
                if value is None and isinstance(key.type, SectionOf) and key.default is not None:
                    value = {}
                filled[key.name] = (
                    written_default(key) if value is None else fill_in_defaults(value, key.type)
                )
            return {name: value for name, value in filled.items() if value not in (None, [], {})}
        case MapOf(value=inner), dict():
            return {name: fill_in_defaults(value, inner) for name, value in written.items()}
        case ListOf(item=inner), list():
            return [fill_in_defaults(value, inner) for value in written]
        case _:
            return written


def effective_default(loaded: LoadedConfig, path: KeyPath, key: SettingKey) -> JsonValue:
    """Return the value that applies where a key is not set, in words where it is not a single value."""
    model = loaded.model
    match path:
        case ("service", "max_workers"):
            return loaded.max_workers
        case (
            ("service", "timezone")
            | ("plugins", _, "schedules", _, "timezone")
            | ("plugins", _, "schedule", "timezone")
        ):
            return loaded.timezone
        case ("plugin_roots",) if model.plugins_dir:
            return [model.plugins_dir]
        case ("plugins", str(name), "uses"):
            return name
        case ("plugins", str(name), "retry", str(field)):
            retry = compile_retry(model.plugins[name].retry, max_attempts=model.plugins[name].max_attempts)
            value = getattr(retry, field)
            return value if field == "max_attempts" else format_duration(value)
        case ("webhooks", "endpoints", int(index), "name"):
            return endpoint_name(model.webhooks.endpoints[index])
        case ("webhooks", "endpoints", int(index), "signature_header"):
            return signature_scheme(model.webhooks.endpoints[index]).header
        case _ if key.default_text is None:
            return written_default(key)
        case _ if literal := _LITERAL.fullmatch(key.default_text):
            return to_plain(parse_yaml(literal[1], file="a default"))
        case _:
            return key.default_text.replace("`", "")
