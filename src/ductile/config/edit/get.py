"""`config get`: the value of one key, or its default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ductile.config.effective import effective_default
from ductile.config.redaction import redacted_config
from ductile.config.schema.fields import FieldType, ListOf, MapOf, SectionOf, SettingKey, keys_of
from ductile.config.schema.model import Config
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError, UsageError
from ductile.protocol.yaml_tree import KeyPath, ListNode, MapNode, Node, SourceLocation, format_path, node_at
from ductile.struct import Value

if TYPE_CHECKING:
    from ductile.config.load import LoadedConfig
    from ductile.core.json import JsonValue

_PART = re.compile(r"(?:^|\.)(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]{1,6})\]")


class Setting(Value):
    """The redacted value of a key; `location` is None when it is the default."""

    key: str
    value: JsonValue
    location: SourceLocation | None


def parse_key(text: str) -> KeyPath:
    """Split `plugins.echo.schedules[0].every`. Raises UsageError if it is not of that form."""
    parts: list[str | int] = []
    end = 0
    for found in _PART.finditer(text):
        if found.start() != end:
            break
        parts.append(found["name"] if found["index"] is None else int(found["index"]))
        end = found.end()
    if not parts or end != len(text):
        hint = "write it as in service.log_level or routes[0].to; config set adds an entry with routes[+]"
        raise UsageError(f'"{text}" is not a key', hint=hint)
    return tuple(parts)


def get_setting(loaded: LoadedConfig, key: str) -> Setting:
    """Return the value of a key, or its default. Raises NotFoundError if there is no such key."""
    path = resolve_indexes(loaded.tree, parse_key(key))
    node = node_at(loaded.tree, path)
    if node is not None:
        return Setting(key=key, value=redacted_config(node, path), location=loaded.location(*path))
    default = effective_default(loaded, path, _key_of_model(loaded.tree, path))
    return Setting(key=key, value=default, location=None)


def resolve_indexes(root: MapNode, path: KeyPath) -> KeyPath:
    """Return the path with numbers where lists are: `pipelines.1.name` means `pipelines[1].name`."""
    resolved: list[str | int] = []
    node: Node | None = root
    for part in path:
        numbered = isinstance(node, ListNode) and isinstance(part, str) and part.isascii() and part.isdigit()
        resolved.append(int(part) if numbered else part)
        node = node and node_at(node, (resolved[-1],))
    return tuple(resolved)


def _key_of_model(root: MapNode, path: KeyPath) -> SettingKey:
    """Return the key of the model at a path. Raises NotFoundError for an entry: it has no default."""
    field_type: FieldType = SectionOf(section=Config)
    key: SettingKey | None = None
    for length, part in enumerate(path, start=1):
        here = path[:length]
        match field_type, part:
            case SectionOf(section=section), str():
                keys = {each.name: each for each in keys_of(section)}
                if part not in keys:
                    raise NotFoundError(f"there is no key {format_path(here)}", hint=did_you_mean(part, keys))
                key = keys[part]
                field_type = key.type
            case (MapOf(value=inner), str()) | (ListOf(item=inner), int()) if node_at(root, here):
                key, field_type = None, inner
            case _:
                parent = node_at(root, here[:-1])
                names = [each.text for each, _ in parent.entries] if isinstance(parent, MapNode) else []
                beside = f"{format_path(here[:-1])} has {', '.join(names)}" if names else None
                hint = did_you_mean(str(part), names) or beside
                raise NotFoundError(f"nothing is set at {format_path(path)}", hint=hint)
    if key is None:
        raise NotFoundError(f"nothing is set at {format_path(path)}")
    return key
