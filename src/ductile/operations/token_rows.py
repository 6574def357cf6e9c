"""The tokens of a configuration as they are written, without their values and without needing them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.config.files import read_regular_file
from ductile.config.locate import resolve_path
from ductile.protocol.yaml12 import ListNode, MapNode, Node, ScalarNode
from ductile.value import Value

if TYPE_CHECKING:
    from ductile.config.keypath import KeyPath
    from ductile.config.sources import Sources

_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-.*)?\}", re.DOTALL)


class TokenRow(Value):
    """A token or a secret. One without scopes opens nothing; it signs (SPEC 8.1)."""

    name: str | None
    scopes: tuple[str, ...]
    file: str
    line: int
    #: Where it is in its own file.
    path: KeyPath
    #: The environment variable that holds the value; None if it is written in the clear.
    variable: str | None
    scopes_file: str | None
    #: Whether it stands under `api.auth.tokens`.
    inline: bool

    @property
    def kind(self) -> str:
        return "token" if self.scopes else "secret"


def list_rows(sources: Sources) -> tuple[TokenRow, ...]:
    """In the order in which they are loaded."""
    return tuple(row for file in sources.files for row in _rows_of(file.tree, sources.directory))


def _rows_of(tree: MapNode, directory: Path) -> Iterator[TokenRow]:
    for index, entry in _entries(tree, ("tokens",)):
        scopes_file = _text(entry, "scopes_file")
        yield TokenRow(
            name=_text(entry, "name"),
            scopes=() if scopes_file is None else _read_scopes(resolve_path(scopes_file, directory)),
            file=entry.place.file,
            line=entry.place.line,
            path=("tokens", index),
            variable=_variable(_text(entry, "key")),
            scopes_file=scopes_file,
            inline=False,
        )
    for index, entry in _entries(tree, ("api", "auth", "tokens")):
        scopes = entry.get("scopes")
        listed = scopes.items if isinstance(scopes, ListNode) else ()
        yield TokenRow(
            name=_text(entry, "name"),
            scopes=tuple(item.text for item in listed if isinstance(item, ScalarNode)),
            file=entry.place.file,
            line=entry.place.line,
            path=("api", "auth", "tokens", index),
            variable=_variable(_text(entry, "token")),
            scopes_file=None,
            inline=True,
        )


def _entries(tree: MapNode, path: tuple[str, ...]) -> Iterator[tuple[int, MapNode]]:
    node: Node | None = tree
    for part in path:
        node = node.get(part) if isinstance(node, MapNode) else None
    for index, item in enumerate(node.items if isinstance(node, ListNode) else ()):
        if isinstance(item, MapNode):
            yield index, item


def _text(entry: MapNode, key: str) -> str | None:
    node = entry.get(key)
    return node.text if isinstance(node, ScalarNode) else None


def _variable(written: str | None) -> str | None:
    found = _REFERENCE.fullmatch(written.strip()) if written else None
    return found["name"] if found else None


def _read_scopes(path: Path) -> tuple[str, ...]:
    """What a scope file grants; one that cannot be read grants nothing, and `config check` says why."""
    try:
        scopes = json.loads(read_regular_file(path))["scopes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()
