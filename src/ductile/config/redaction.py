"""Redacts a located tree: for `config show`, error messages, snapshots and `repr`.

A value from a variable is shown as the written reference, never as its value. A value whose key looks secret,
or which the model types as a secret, is masked.
"""

from __future__ import annotations

from collections.abc import Iterator

from ductile.config.file_io import hash_bytes
from ductile.config.read.interpolate import without_defaults
from ductile.config.schema.fields import Scalar, SettingType
from ductile.config.schema.model import settings_by_path
from ductile.config.secrets import MASK, has_secret_url, looks_secret, mask_urls
from ductile.core.json import JsonValue
from ductile.protocol.yaml_tree import KeyPath, ListNode, MapNode, Node, ScalarNode, scalar_value, walk


def redacted_entries(node: MapNode) -> dict[str, JsonValue]:
    """Return the entries of a map whose keys the model does not name, masked by their keys."""
    free: KeyPath = ("plugins", "", "config")
    return {key.text: redacted_config(value, (*free, key.text)) for key, value in node.entries}


def redacted_config(node: Node, path: KeyPath = (), *, secret: bool = False) -> JsonValue:
    """Return the configuration, masked by the model and by the keys that the model leaves free."""
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
            secret = secret or _is_secret(path)
            if node.written is not None:
                reference = without_defaults(node.written)
                bare = reference.strip()
                # Text beside a single reference may be part of the secret.
                is_bare = bare.startswith("${") and bare.endswith("}") and bare.count("${") == 1
                if is_bare or not secret:
                    return mask_urls(reference)
            value = scalar_value(node)
            if secret and value is not None and not isinstance(value, bool):
                return MASK
            return mask_urls(value) if isinstance(value, str) else value


def digest_hidden_values(node: Node, path: KeyPath = (), *, secret: bool = False) -> JsonValue:
    """Return a tree of the same shape with a digest for each value that `redacted_config` does not show.

    For comparing within this process: a digest of a short secret could be guessed and must not be stored.
    """
    match node:
        case MapNode(entries=entries):
            return {
                key.text: digest_hidden_values(
                    value, (*path, key.text), secret=secret or _compares_secret(node, key.text)
                )
                for key, value in entries
            }
        case ListNode(items=items):
            return [
                digest_hidden_values(item, (*path, index), secret=secret) for index, item in enumerate(items)
            ]
        case ScalarNode():
            redacted = redacted_config(node, path, secret=secret)
            if node.written is None and redacted == scalar_value(node):
                return None
            return hash_bytes(node.text.encode())


def secret_scalars(
    node: Node, path: KeyPath = (), *, secret: bool = False
) -> Iterator[tuple[KeyPath, ScalarNode]]:
    """Yield every secret scalar of a configuration with its path."""
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


def literal_urls(root: Node) -> Iterator[tuple[KeyPath, ScalarNode]]:
    """Yield every scalar with a URL that contains a literal password or secret-looking parameter."""
    for path, node in walk(root):
        if isinstance(node, ScalarNode) and has_secret_url(node.written or node.text):
            yield path, node


def _compares_secret(node: MapNode, key: str) -> bool:
    """Return whether this is the value of a condition on a secret, and so a guess at the secret."""
    if key != "value":
        return False
    names = {entry.text: value.text for entry, value in node.entries if isinstance(value, ScalarNode)}
    return "op" in names and any(looks_secret(part) for part in names.get("path", "").split("."))


def _is_secret(path: KeyPath) -> bool:
    pattern = tuple("[]" if isinstance(part, int) else part for part in path)
    if path[:1] == ("plugins",) and len(path) > 1:
        pattern = ("plugins", "*", *pattern[2:])
    setting = settings_by_path().get(pattern)
    if setting is not None and setting.type == Scalar(type=SettingType.SECRET):
        return True
    # Where the model does not name the keys: below a config, a payload, a step.
    match path:
        case (
            ("plugins", _, "config" | "env", *free)
            | ("plugins", _, "schedules", _, "payload", *free)
            | ("plugins", _, "schedule", "payload", *free)
            | ("pipelines", *free)
        ):
            return any(looks_secret(part) for part in free if isinstance(part, str))
        case _:
            return False
