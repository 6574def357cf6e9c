"""The entries of tokens and shared secrets in the configuration's files, without their values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.config.file_io import read_regular_file
from ductile.config.find_config import find_config, resolve_path
from ductile.config.read.includes import ConfigFiles, load_config_files
from ductile.core.suggest import did_you_mean
from ductile.errors import ConflictError, NotFoundError
from ductile.protocol.yaml_tree import ListNode, MapNode, Node, ScalarNode, node_at
from ductile.struct import Value

if TYPE_CHECKING:
    from ductile.protocol.yaml_tree import KeyPath

#: The lists of tokens: of entries with a scope file, and of entries that list their scopes.
_TOKENS: KeyPath = ("tokens",)
_INLINE_TOKENS: KeyPath = ("api", "auth", "tokens")
_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-.*)?\}", re.DOTALL)


class TokenEntry(Value):
    """An entry of a token, or of a secret, which has no scopes and signs requests."""

    name: str | None
    scopes: tuple[str, ...]
    file: str
    line: int
    #: The path of the entry in its file.
    path: KeyPath
    #: The environment variable of the value; None for a value in the file itself.
    variable: str | None
    scopes_file: str | None
    #: Whether the entry is under `api.auth.tokens`.
    inline: bool
    #: The environment variable of the secret before a rotation.
    previous_variable: str | None = None
    #: Until when the secret before a rotation is accepted; None without one.
    previous_expires_at: datetime | None = None

    @property
    def kind(self) -> str:
        return "token" if self.scopes else "secret"

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(variable for variable in (self.variable, self.previous_variable) if variable is not None)


def list_tokens(config_path: str | None, environ: Mapping[str, str]) -> tuple[TokenEntry, ...]:
    """Return every token and secret, in the order of the files, without its value."""
    return read_token_entries(load_config_files(find_config(config_path, environ)))


def read_token_entries(sources: ConfigFiles) -> tuple[TokenEntry, ...]:
    """Return every token and secret of files that were read before."""
    entries = [
        (entry, (*path, index), path == _INLINE_TOKENS)
        for file in sources.files
        for path in (_TOKENS, _INLINE_TOKENS)
        for index, entry in enumerate(_items(node_at(file.tree, path)))
        if isinstance(entry, MapNode)
    ]
    rows = []
    for entry, path, inline in entries:
        scopes_file = None if inline else _text(entry.get("scopes_file"))
        if scopes_file is not None:
            scopes = _read_scopes(resolve_path(scopes_file, sources.directory))
        else:
            listed = _items(entry.get("scopes")) if inline else ()
            scopes = tuple(item.text for item in listed if isinstance(item, ScalarNode))
        row = TokenEntry(
            name=_text(entry.get("name")),
            scopes=scopes,
            file=entry.location.file,
            line=entry.location.line,
            path=path,
            variable=_referenced_variable(entry.get("token" if inline else "key")),
            scopes_file=scopes_file,
            inline=inline,
            previous_variable=None if inline else _referenced_variable(entry.get("previous_key")),
            previous_expires_at=None if inline else _parse_instant(entry.get("previous_expires_at")),
        )
        rows.append(row)
    return tuple(rows)


def _items(node: Node | None) -> tuple[Node, ...]:
    return node.items if isinstance(node, ListNode) else ()


def _text(node: Node | None) -> str | None:
    return node.text if isinstance(node, ScalarNode) else None


def _referenced_variable(node: Node | None) -> str | None:
    """Return the variable that a value refers to; None for a value in the file itself."""
    reference = _REFERENCE.fullmatch((_text(node) or "").strip())
    return reference["name"] if reference else None


def _parse_instant(node: Node | None) -> datetime | None:
    """Return the instant that is written; None if it is not one, which `config check` reports."""
    try:
        instant = datetime.fromisoformat(_text(node) or "")
    except ValueError:
        return None
    return instant if instant.tzinfo is not None else None


def _read_scopes(path: Path) -> tuple[str, ...]:
    """Return the scopes of a scope file; none if it cannot be read, which `config check` reports."""
    try:
        scopes = json.loads(read_regular_file(path))["scopes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()


def find_editable_entry(sources: ConfigFiles, name: str) -> TokenEntry:
    """Return an entry that can be changed. Raises NotFoundError, ConflictError for `api.auth.tokens`."""
    row = find_token_entry(read_token_entries(sources), name)
    if row.inline:
        raise ConflictError(
            f"{name} is written under `api.auth.tokens`", hint=f"change it there: {row.file}:{row.line}"
        )
    return row


def find_token_entry(rows: tuple[TokenEntry, ...], name: str) -> TokenEntry:
    """Return the entry of this name. Raises NotFoundError."""
    entry = next((row for row in rows if row.name == name), None)
    if entry is None:
        raise NotFoundError(
            f"there is no token {name}",
            hint=did_you_mean(name, [row.name for row in rows if row.name]) or "See `ductile token list`.",
        )
    return entry


def count_references(sources: ConfigFiles, variable: str) -> int:
    reference = re.compile(rb"\$\{%s[}:]" % variable.encode())
    return sum(len(reference.findall(file.data)) for file in sources.files)
