"""A located tree made fit to be shown: `config show`, error messages, snapshots, `repr`.

A value that came from a variable is shown as the reference that was written, never as what it
became; a value whose key looks secret, or which the model types as a secret, is masked.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ductile.config.read.interpolate import without_defaults
from ductile.config.schema.fields import Scalar, settings_under
from ductile.config.schema.model import Config
from ductile.config.schema.types import SettingType
from ductile.config.secrets import MASK, has_secret_url, looks_secret, mask_urls
from ductile.protocol.yaml import ListNode, MapNode, Node, ScalarNode, scalar_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.config.key_paths import KeyPath
    from ductile.core.json import JsonValue


def redacted_entries(node: MapNode) -> dict[str, JsonValue]:
    """The entries of a plugin's configuration or environment, masked by their keys."""
    return {key.text: _shown(value, secret=looks_secret(key.text)) for key, value in node.entries}


def redacted_config(node: Node, path: KeyPath = (), *, secret: bool = False) -> JsonValue:
    """The whole configuration, masked by the model and by the keys of what the model leaves free."""
    match node:
        case MapNode(entries=entries):
            return {
                key.text: redacted_config(
                    value, (*path, key.text), secret=secret or _compares_secret(node, key.text)
                )
                for key, value in entries
            }
        case ListNode(items=items):
            return [redacted_config(item, (*path, index), secret=secret) for index, item in enumerate(items)]
        case ScalarNode():
            return _shown(node, secret=secret or _is_secret(path))


def secret_scalars(
    node: Node, path: KeyPath = (), *, secret: bool = False
) -> Iterator[tuple[KeyPath, ScalarNode]]:
    """Everything in a configuration that says something secret, with its path."""
    match node:
        case MapNode(entries=entries):
            for key, value in entries:
                hidden = secret or _compares_secret(node, key.text)
                yield from secret_scalars(value, (*path, key.text), secret=hidden)
        case ListNode(items=items):
            for index, item in enumerate(items):
                yield from secret_scalars(item, (*path, index), secret=secret)
        case ScalarNode():
            if (secret or _is_secret(path)) and not isinstance(scalar_value(node), bool | None):
                yield path, node


def literal_urls(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, ScalarNode]]:
    """Every URL in a configuration with a password or a secret-looking parameter written out in it."""
    match node:
        case MapNode(entries=entries):
            for key, value in entries:
                yield from literal_urls(value, (*path, key.text))
        case ListNode(items=items):
            for index, item in enumerate(items):
                yield from literal_urls(item, (*path, index))
        case ScalarNode():
            written = node.text if node.written is None else node.written
            if has_secret_url(written):
                yield path, node


def _compares_secret(node: MapNode, key: str) -> bool:
    """Whether this is the value of a condition on something secret: then it says what that would be."""
    if key != "value":
        return False
    names = {entry.text: value.text for entry, value in node.entries if isinstance(value, ScalarNode)}
    return "op" in names and any(looks_secret(part) for part in names.get("path", "").split("."))


def _is_secret(path: KeyPath) -> bool:
    free = (part for part in _free_part(path) if isinstance(part, str))
    return _pattern(path) in _secret_settings() or any(looks_secret(part) for part in free)


def _shown(node: Node, *, secret: bool) -> JsonValue:
    match node:
        case MapNode(entries=entries):
            return {
                key.text: _shown(value, secret=secret or looks_secret(key.text)) for key, value in entries
            }
        case ListNode(items=items):
            return [_shown(item, secret=secret) for item in items]
        case ScalarNode():
            return _shown_scalar(node, secret=secret)


def _shown_scalar(node: ScalarNode, *, secret: bool) -> JsonValue:
    if node.written is not None and not (secret and _has_literal_text(node.written)):
        return mask_urls(without_defaults(node.written))
    value = scalar_value(node)
    if secret and value is not None and not isinstance(value, bool):
        return MASK
    return mask_urls(value) if isinstance(value, str) else value


def _has_literal_text(written: str) -> bool:
    """Whether there is more to it than one reference: the rest may be part of the secret."""
    shown = without_defaults(written).strip()
    return not (shown.startswith("${") and shown.endswith("}") and shown.count("${") == 1)


@cache
def _secret_settings() -> frozenset[tuple[str, ...]]:
    settings = settings_under(Config)
    return frozenset(path for path, key in settings if key.shape == Scalar(kind=SettingType.SECRET))


def _pattern(path: KeyPath) -> tuple[str, ...]:
    """A path as the model writes it: `[]` for a position."""
    return tuple("[]" if isinstance(part, int) else part for part in path)


def _free_part(path: KeyPath) -> KeyPath:
    """The part of a path whose keys the model does not name: below a plugin's config, a payload, a step."""
    match path:
        case ("plugins", _, "config" | "env", *rest):
            return tuple(rest)
        case ("plugins", _, "schedules", _, "payload", *rest) | ("plugins", _, "schedule", "payload", *rest):
            return tuple(rest)
        case ("pipelines", *rest):
            return tuple(rest)
        case _:
            return ()
