"""Reads `config.yaml` and the files it includes, and merges them into one tree.

Handles the order of includes, cycles, directories and symbolic links. Each file is read once: the parsed
bytes are the bytes that are hashed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import MappingProxyType

from ductile.config.file_io import find_symlinks, read_overlaid
from ductile.config.find_config import is_url
from ductile.config.read.interpolate import has_reference
from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import (
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    is_empty,
    problem_at,
)
from ductile.struct import Value, hide_in_repr

_SUFFIXES = (".yaml", ".yml")


@hide_in_repr("data", "tree")
class ConfigFile(Value):
    """A configuration file as read. Its bytes may hold secrets and stay out of `repr`."""

    path: Path
    data: bytes
    tree: MapNode


@hide_in_repr("root")
class ConfigFiles(Value):
    """All files in the order of loading, their merged tree, and the symbolic links in their paths."""

    directory: Path
    files: tuple[ConfigFile, ...]
    root: MapNode
    links: tuple[Path, ...] = ()


def load_config_files(
    config_file: Path, overlay: Mapping[Path, bytes | None] = MappingProxyType({})
) -> ConfigFiles:
    """Read a configuration file and everything it includes. Raises ConfigError with every problem.

    The overlay replaces the contents of files on disk, to try a change before it is written.
    """
    loader = _Loader(directory=config_file.parent, overlay=overlay)
    loader.load(config_file, included_at=None)
    if loader.problems:
        raise ConfigError("the configuration cannot be read", problems=tuple(loader.problems))
    return ConfigFiles(
        directory=config_file.parent,
        files=tuple(loader.files),
        root=reduce(_merge_maps, (file.tree for file in loader.files)),
        links=tuple(dict.fromkeys(loader.links)),
    )


def merge_trees(earlier: Node, later: Node) -> Node:
    """Merge maps key by key at every depth, append lists, and replace anything else by the later value.

    An empty value in a later file does not replace a map or a list: it is a heading without entries. Every
    node keeps the location where it was written.
    """
    match earlier, later:
        case MapNode(), MapNode():
            return _merge_maps(earlier, later)
        case ListNode(), ListNode():
            return ListNode(items=earlier.items + later.items, location=earlier.location)
        case ((MapNode() | ListNode()), ScalarNode()) if is_empty(later):
            return earlier
        case _:
            return later


def _merge_maps(earlier: MapNode, later: MapNode) -> MapNode:
    entries = {key.text: (key, value) for key, value in earlier.entries}
    for key, value in later.entries:
        if key.text not in entries:
            entries[key.text] = (key, value)
            continue
        earlier_key, earlier_value = entries[key.text]
        merged = merge_trees(earlier_value, value)
        entries[key.text] = (key if merged is value else earlier_key, merged)
    return MapNode(entries=tuple(entries.values()), location=earlier.location)


@dataclass(slots=True)
class _Loader:
    directory: Path
    overlay: Mapping[Path, bytes | None]
    files: list[ConfigFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    #: Resolved paths: a file reached by two names is one file.
    _seen: set[Path] = field(default_factory=set)
    #: The file that is being loaded, after those that include it.
    _ancestors: list[Path] = field(default_factory=list)

    def load(self, path: Path, *, included_at: SourceLocation | None) -> None:
        """Read a file and the files that it includes, unless it was read already."""
        resolved = path.resolve()
        if resolved in self._ancestors:
            cycle = " → ".join(
                file.name for file in (*self._ancestors[self._ancestors.index(resolved) :], resolved)
            )
            self._add_problem(included_at, f"{path} includes itself: {cycle}")
            return
        if resolved in self._seen:
            return
        self._seen.add(resolved)
        self.links += find_symlinks(path, self.directory)
        try:
            data = read_overlaid(path, self.overlay)
            tree = parse_yaml(data, file=str(path))
        except OSError as error:
            self._add_problem(included_at, f"{path} cannot be read: {error.strerror}")
            return
        except ConfigError as error:
            self.problems += error.problems
            return
        if tree is None or is_empty(tree):
            tree = MapNode(entries=(), location=SourceLocation(file=str(path), line=1, column=1))
        if not isinstance(tree, MapNode):
            message = "a configuration file is a map of sections"
            kind = "a list" if isinstance(tree, ListNode) else "text"
            self.problems.append(problem_at(tree.location, (), message, expected="a map", found=kind))
            return
        file = ConfigFile(path=path, data=data, tree=tree)
        self.files.append(file)
        self._ancestors.append(resolved)
        for included, location in self._included_files(file):
            self.load(included, included_at=location)
        self._ancestors.pop()

    def _included_files(self, file: ConfigFile) -> list[tuple[Path, SourceLocation]]:
        """Return the files that a file includes, each with the place of the include."""
        includes = file.tree.get("include")
        if not isinstance(includes, ListNode):  # the decoder reports any other type
            return []
        included: list[tuple[Path, SourceLocation]] = []
        for index, item in enumerate(includes.items):
            if not isinstance(item, ScalarNode):
                continue
            message, hint = None, None
            if has_reference(item.text):
                message = "an include cannot use variables"
                hint = "write the path itself; the set of loaded files must not depend on the environment"
            elif is_url(item.text):
                message = "an include has to be a local file, not a URL"
            elif not item.text.strip():
                message = "this include is empty"
            if message is not None:
                self.problems.append(problem_at(item.location, ("include", index), message, hint=hint))
                continue
            path = file.path.parent / item.text
            try:
                included += ((child, item.location) for child in self._expand_include(path, item.location))
            except PermissionError as error:
                self._add_problem(item.location, f"the included {path} cannot be read: {error.strerror}")
        return included

    def _expand_include(self, path: Path, location: SourceLocation) -> list[Path]:
        """Return the files of an include, which may name a directory."""
        if path.is_dir():
            self.links += find_symlinks(path, self.directory)
            present = {file for file in path.iterdir() if file.is_file()}
            present |= {file for file in self.overlay if file.parent == path}
            return sorted(
                file
                for file in present
                if file.suffix in _SUFFIXES and file.name[0] != "." and self._exists(file)
            )
        if self._exists(path):
            return [path]
        hint = f"create it, or remove the include; it is looked for relative to {location.file}"
        self._add_problem(location, f"the included {path} does not exist", hint=hint)
        return []

    def _exists(self, path: Path) -> bool:
        return self.overlay[path] is not None if path in self.overlay else path.exists()

    def _add_problem(self, location: SourceLocation | None, message: str, *, hint: str | None = None) -> None:
        self.problems.append(problem_at(location, ("include",) if location else (), message, hint=hint))
