"""Compares two configurations key by key, without showing secrets. Pure.

A value that is not shown (a secret, or the value of a variable) has a digest in a second tree of the same
shape, so that a change of it is found and reported without the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from ductile.config.file_io import hash_bytes
from ductile.config.read.environment import parse_environment
from ductile.config.read.interpolate import has_reference
from ductile.config.redaction import digest_hidden_values, redacted_config
from ductile.config.schema.model import settings_by_path
from ductile.config.secrets import MASK
from ductile.core.json import JsonValue
from ductile.errors import ConfigError
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import KeyPath, ListNode, MapNode, Node, ScalarNode, walk
from ductile.struct import Value, hide_in_repr, replace

#: Keys that name an entry of a list, so that an entry is compared with itself wherever it stands.
_NAMING_KEYS = ("id", "name", "path")
_ASSIGNMENT_PREFIXES = ("export ", "export\t")


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class SettingDifference(Value):
    """A key whose value differs. `hidden` is true if only a value that is not shown differs."""

    key: str
    change: ChangeKind
    before: JsonValue = None
    after: JsonValue = None
    hidden: bool = False

    def describe(self) -> str:
        """Return one line, marked as diffs are: `~ service.log_level: info → debug`."""
        match self.change:
            case ChangeKind.ADDED:
                return f"+ {self.key}: {_inline(self.after)}"
            case ChangeKind.REMOVED:
                return f"- {self.key}: {_inline(self.before)}"
            case ChangeKind.CHANGED if self.hidden:
                return f"~ {self.key}: {_inline(self.after)} (its value has changed)"
            case ChangeKind.CHANGED:
                return f"~ {self.key}: {_inline(self.before)} → {_inline(self.after)}"


@hide_in_repr("digests")
class ComparableConfig(Value):
    """A redacted configuration. `digests` has one for each value that is not shown, None if unknown."""

    redacted: JsonValue
    digests: JsonValue = None


class _AbsentKey:
    """The side of a comparison that does not have the key."""


_ABSENT: Final = _AbsentKey()
#: The value of a key before or after the change, and the digests of the values in it that are not shown.
_Side: TypeAlias = "tuple[JsonValue | _AbsentKey, JsonValue]"


def compare_configs(before: ComparableConfig, after: ComparableConfig) -> tuple[SettingDifference, ...]:
    """Return a difference for each key that was added, removed or changed, in the order of the later one."""
    return tuple(_compare("", (before.redacted, before.digests), (after.redacted, after.digests)))


def _compare(key: str, before: _Side, after: _Side) -> Iterator[SettingDifference]:
    """Yield the differences at a key and below it."""
    (old, old_digests), (new, new_digests) = before, after
    if _is_kind(dict, old, new):
        yield from _compare_members(key, _members(before), _members(after), "{}.{}" if key else "{}{}")
        return
    if _is_kind(list, old, new) and _holds_maps(old) and _holds_maps(new):
        names_before, names_after = _entry_names(old), _entry_names(new)
        if names_before is None or names_after is None:  # by position
            names_before, names_after = _positions(old), _positions(new)
        order_before: list[JsonValue] = [name for name in names_before if name in names_after]
        order_after: list[JsonValue] = [name for name in names_after if name in names_before]
        if order_before != order_after:
            yield SettingDifference(
                key=f"{key} (order)", change=ChangeKind.CHANGED, before=order_before, after=order_after
            )
        yield from _compare_members(key, _items(before, names_before), _items(after, names_after), "{}[{}]")
        return
    if isinstance(old, _AbsentKey):
        yield SettingDifference(key=key, change=ChangeKind.ADDED, after=_value_or_none(new))
    elif isinstance(new, _AbsentKey):
        yield SettingDifference(key=key, change=ChangeKind.REMOVED, before=_value_or_none(old))
    elif _encode(old) != _encode(new):
        yield SettingDifference(key=key, change=ChangeKind.CHANGED, before=old, after=new)
    elif old_digests is not None and new_digests is not None and old_digests != new_digests:
        yield SettingDifference(key=key, change=ChangeKind.CHANGED, before=old, after=new, hidden=True)


def _compare_members(
    key: str, before: dict[str, _Side], after: dict[str, _Side], key_format: str
) -> Iterator[SettingDifference]:
    for name in (*after, *(name for name in before if name not in after)):
        missing: _Side = (_ABSENT, None)
        yield from _compare(key_format.format(key, name), before.get(name, missing), after.get(name, missing))


def _is_kind(kind: type, old: JsonValue | _AbsentKey, new: JsonValue | _AbsentKey) -> bool:
    """Return whether both are of this kind, or one is and has members, and the other is missing."""
    return all(isinstance(side, kind | _AbsentKey) for side in (old, new)) and any(
        isinstance(side, kind) and (side or isinstance(other, kind))
        for side, other in ((old, new), (new, old))
    )


def _members(side: _Side) -> dict[str, _Side]:
    value, hidden = side
    digests = hidden if isinstance(hidden, dict) else {}
    return (
        {name: (inner, digests.get(name)) for name, inner in value.items()} if isinstance(value, dict) else {}
    )


def _items(side: _Side, names: Sequence[str]) -> dict[str, _Side]:
    value, hidden = side
    items = value if isinstance(value, list) else []
    digests = hidden if isinstance(hidden, list) else [None] * len(items)
    return {name: (item, digest) for name, item, digest in zip(names, items, digests, strict=True)}


def _holds_maps(value: JsonValue | _AbsentKey) -> bool:
    return isinstance(value, _AbsentKey) or (
        isinstance(value, list) and all(isinstance(item, dict) for item in value)
    )


def _entry_names(value: JsonValue | _AbsentKey) -> list[str] | None:
    """Return the names of a list's entries by the first key that names all of them, None without one."""
    if not isinstance(value, list):
        return []
    entries = [item for item in value if isinstance(item, dict)]
    for key in _NAMING_KEYS:
        names = [item.get(key) for item in entries]
        texts = [name for name in names if isinstance(name, str)]
        if len(set(texts)) == len(names):
            return texts
    return None


def _positions(value: JsonValue | _AbsentKey) -> list[str]:
    return [str(index) for index in range(len(value))] if isinstance(value, list) else []


def _value_or_none(value: JsonValue | _AbsentKey) -> JsonValue:
    return None if isinstance(value, _AbsentKey) else value


def _encode(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


def _inline(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def summarise(differences: Sequence[SettingDifference], *, limit: int = 3) -> str:
    """Return one line with the first keys that differ, and how many more there are."""
    # Without what is below the entry of a section: a new plugin is one change, not ten.
    keys = list(dict.fromkeys(".".join(difference.key.split(".")[:2]) for difference in differences))
    more = f" and {len(keys) - limit} more" if len(keys) > limit else ""
    return ", ".join(keys[:limit]) + more


# ------------------------------------------------------------------------------------------------ files


def comparable_file(data: bytes, name: str) -> ComparableConfig | None:
    """Return the content of one file of a configuration, None if it cannot be parsed.

    An environment file has the names of its variables; their values are never shown. A file with a line that
    looks like an assignment is never read as YAML, which could take part of a value for a key.
    """
    if _looks_like_environment(data):
        variables, problems = parse_environment(data, file=name)
        if problems:
            return None
        digests: dict[str, JsonValue] = {key: hash_bytes(value.encode()) for key, value in variables.items()}
        return ComparableConfig(redacted=dict.fromkeys(variables, MASK), digests=digests)
    try:
        tree = parse_yaml(data, file=name)
        if tree is None:
            return ComparableConfig(redacted={}, digests={})
        tree = _mark_references(tree)
        redacted, hidden = _mask_unknown(tree, redacted_config(tree), digest_hidden_values(tree), ())
        return ComparableConfig(redacted=redacted, digests=hidden)
    except (ConfigError, RecursionError):
        return None


def _looks_like_environment(data: bytes) -> bool:
    """Return whether a line of the file looks like the assignment of a variable."""
    for raw in data.decode("utf-8-sig", "replace").splitlines():
        line = raw
        for prefix in _ASSIGNMENT_PREFIXES:
            line = line.removeprefix(prefix).lstrip() if line.startswith(prefix) else line
        name, equals, _ = line.partition("=")
        if equals and name.strip().isidentifier() and name.strip().isascii():
            return True
    return False


def _mark_references(node: Node) -> Node:
    """Return the tree with references to variables marked as written, so that defaults are not shown."""
    match node:
        case MapNode(entries=entries):
            return replace(node, entries=tuple((key, _mark_references(value)) for key, value in entries))
        case ListNode(items=items):
            return replace(node, items=tuple(map(_mark_references, items)))
        case ScalarNode():
            return replace(node, written=node.text) if has_reference(node.text) else node


def _mask_unknown(
    node: Node, redacted: JsonValue, hidden: JsonValue, path: KeyPath
) -> tuple[JsonValue, JsonValue]:
    """Mask the values of keys that the model does not know: a misspelt key can hold a secret."""
    match node, redacted, hidden:
        case MapNode(entries=entries), dict(), dict():
            pairs = {
                key.text: _mask_unknown(value, redacted[key.text], hidden[key.text], (*path, key.text))
                for key, value in entries
            }
            return (
                {key: value for key, (value, _) in pairs.items()},
                {key: digest for key, (_, digest) in pairs.items()},
            )
        case ListNode(items=items), list(), list():
            masked = [
                _mask_unknown(item, redacted[index], hidden[index], (*path, index))
                for index, item in enumerate(items)
            ]
            return [value for value, _ in masked], [digest for _, digest in masked]
        case ScalarNode(), _, _ if not _is_known(path):
            return MASK, hash_bytes(node.text.encode())
        case _:
            return redacted, hidden


def unknown_scalars(root: Node) -> Iterator[tuple[KeyPath, ScalarNode]]:
    """Yield every value of a file whose key the model does not know: a misspelt key can hold a secret."""
    for path, node in walk(root):
        if isinstance(node, ScalarNode) and path and not _is_known(path):
            yield path, node


def _is_known(path: KeyPath) -> bool:
    """Return whether the model has the key, or leaves it free: below a plugin's config, and in a pipeline."""
    pattern = ["[]" if isinstance(part, int) else part for part in path]
    if pattern[:1] == ["plugins"] and len(pattern) > 1:
        pattern[1] = "*"
    while pattern and pattern[-1] == "[]":
        pattern.pop()
    settings = settings_by_path()
    free = pattern[:1] in (["pipelines"], ["scopes"]) or (
        pattern[:1] == ["plugins"] and tuple(pattern[:3]) in settings
    )
    return not pattern or free or tuple(pattern) in settings


def describe_lines(differences: Iterable[SettingDifference], *, limit: int) -> list[str]:
    """Return a line for each difference, and the number of those beyond `limit`."""
    lines = [difference.describe() for difference in differences]
    return lines if len(lines) <= limit else [*lines[:limit], f"… and {len(lines) - limit} more"]
