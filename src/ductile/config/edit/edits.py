"""Several changes of keys and of the scopes of tokens, as new contents of files. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ductile.config.edit.change import APPEND, find_definition, find_list_end, parse_key, resolve_indexes
from ductile.config.edit.rewrite import with_entry, with_value, without_value
from ductile.config.edit.token_entries import find_token_entry, read_token_entries
from ductile.config.edit.tokens import scope_file
from ductile.config.file_io import hash_bytes, read_overlaid
from ductile.config.find_config import resolve_path
from ductile.config.read.includes import load_config_files
from ductile.core.json import JsonValue
from ductile.errors import ConfigError, NotFoundError, UsageError
from ductile.protocol.yaml_tree import KeyPath, MapNode, format_path, location_of, node_at, to_plain
from ductile.struct import Value, field


class ConfigEdits(Value):
    """Changes of keys and of scopes. Indexes of lists are those before the change."""

    #: New values by key; a key that ends with `[+]` adds an entry at the end of a list.
    set: Mapping[str, JsonValue] = field(default_factory=dict)
    #: Keys and entries of lists to remove.
    unset: tuple[str, ...] = ()
    #: New scopes of tokens by name.
    token_scopes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.set or self.unset or self.token_scopes)


def edit_files(config_file: Path, edits: ConfigEdits) -> dict[Path, bytes]:
    """Return the new contents of the files that change. The result is not validated.

    Raises NotFoundError for a key or token that does not exist, ConfigError if files cannot be read or
    another file would override a value.
    """
    editor = _Editor(config_file)
    for key, value in edits.set.items():
        editor.set_key(key, value)
    for name, scopes in edits.token_scopes.items():
        editor.set_scopes(name, tuple(scopes))
    # The last entry of a list first, so that the others keep their indexes.
    for path in sorted((editor.path_of(key) for key in edits.unset), key=_written_order, reverse=True):
        editor.unset(path)
    return editor.contents


def _written_order(path: KeyPath) -> list[tuple[int, str]]:
    """Return a sort key that compares positions as numbers and keys as text."""
    return [(part, "") if isinstance(part, int) else (0, part) for part in path]


class _Editor:
    def __init__(self, config_file: Path) -> None:
        self._config_file = config_file
        self.contents: dict[Path, bytes] = {}
        self._root = self._load()

    def _load(self) -> MapNode:
        return load_config_files(self._config_file, self.contents).root

    def _replace(self, file: Path, content: bytes) -> None:
        """Give a file a new content, and load all files with it."""
        self.contents[file] = content
        self._root = self._load()

    def path_of(self, key: str) -> KeyPath:
        path = resolve_indexes(self._root, parse_key(key))
        if node_at(self._root, path) is None:
            raise NotFoundError(f"{format_path(path)} is not set")
        return path

    def set_key(self, key: str, value: JsonValue) -> None:
        path = resolve_indexes(self._root, parse_key(key.removesuffix(APPEND)))
        if key.endswith(APPEND):
            file, local_path = find_list_end(self._root, path, self._config_file, self.contents)
            self._replace(file, with_entry(read_overlaid(file, self.contents), local_path, value, file))
        else:
            parent = path[:-1]
            is_part = len(parent) > 1 and isinstance(node_at(self._root, parent), MapNode)
            if node_at(self._root, path) is None and is_part:  # a new key goes to the entry it is part of
                file, local_path = find_definition(self._root, parent, self._config_file, self.contents)
                local_path = (*local_path, path[-1])
            else:
                file, local_path = find_definition(self._root, path, self._config_file, self.contents)
            self._set_in_file(file, local_path, value)
            node = node_at(self._root, path)
            if node is None or to_plain(node) != value:
                self._raise_overridden(path)

    def unset(self, path: KeyPath) -> None:
        file, local_path = find_definition(self._root, path, self._config_file, self.contents)
        self._replace(file, without_value(read_overlaid(file, self.contents), local_path, file))
        if not isinstance(path[-1], int) and node_at(self._root, path) is not None:
            self._raise_overridden(path)

    def set_scopes(self, name: str, scopes: tuple[str, ...]) -> None:
        """Give a token other scopes: in its entry, or in its scope file with the hash of that."""
        rows = read_token_entries(load_config_files(self._config_file, self.contents))
        row = find_token_entry(rows, name)
        file = Path(row.file)
        if not row.scopes or not scopes:
            hint = "A token needs a scope; a shared secret has none and signs requests."
            raise UsageError(f"the scopes of {name} cannot be changed to or from none", hint=hint)
        if row.inline:
            self._set_in_file(file, (*row.path, "scopes"), list(scopes))
            return
        shared = [other.name for other in rows if other is not row and other.scopes_file == row.scopes_file]
        if shared:
            raise ConfigError(
                f"{row.scopes_file} has the scopes of {shared[0]} as well", hint="Edit the files by hand."
            )
        content = scope_file(scopes)
        self.contents[resolve_path(row.scopes_file or "", self._config_file.parent)] = content
        self._set_in_file(file, (*row.path, "scopes_hash"), hash_bytes(content))

    def _set_in_file(self, file: Path, path: KeyPath, value: JsonValue) -> None:
        """Set a value at a path in one file."""
        self._replace(file, with_value(read_overlaid(file, self.contents), path, value, file))

    def _raise_overridden(self, path: KeyPath) -> None:
        raise ConfigError(
            f"{format_path(path)} is also set by {location_of(self._root, path).file}, which adds to it or "
            "replaces it",
            hint="Change the single keys or entries.",
        )
