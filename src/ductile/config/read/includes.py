"""Reading `config.yaml` and what it includes, into one tree and a list of the files.

Owns includes: their order, cycles, directories, and links. Each file is read once, and the bytes
that are parsed are the bytes that are later hashed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import MappingProxyType

from ductile.config.file_io import read_regular_file
from ductile.config.find_config import is_url
from ductile.config.key_paths import KeyPath, problem_at
from ductile.config.read.interpolate import has_reference
from ductile.config.read.merge import is_empty, merge_maps
from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml import ListNode, MapNode, Node, ScalarNode, SourceLocation, parse_yaml
from ductile.struct import Value, hide_in_repr

_SUFFIXES = (".yaml", ".yml")


@hide_in_repr("data", "tree")
class ConfigFile(Value):
    """A configuration file as it was read. The bytes stay out of `repr`: they may hold secrets."""

    path: Path
    data: bytes
    tree: MapNode


@hide_in_repr("root")
class ConfigFiles(Value):
    """All files in the order of loading, their merged tree, and the symbolic links on the way."""

    directory: Path
    files: tuple[ConfigFile, ...]
    root: MapNode
    links: tuple[Path, ...] = ()


def load_config_files(config_file: Path, overlay: Mapping[Path, bytes] = MappingProxyType({})) -> ConfigFiles:
    """Read a configuration file and everything it includes; ConfigError tells every problem.

    A file in the overlay is taken from there: that is how a change is tried before it is written.
    """
    loader = _Loader(directory=config_file.parent, overlay=overlay)
    loader.load(config_file, said_at=None)
    if loader.problems:
        raise ConfigError("the configuration cannot be read", problems=tuple(loader.problems))
    root = reduce(merge_maps, (file.tree for file in loader.files))
    return ConfigFiles(
        directory=config_file.parent,
        files=tuple(loader.files),
        root=root,
        links=tuple(dict.fromkeys(loader.links)),
    )


@dataclass(slots=True)
class _Loader:
    directory: Path
    overlay: Mapping[Path, bytes]
    files: list[ConfigFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    #: Real paths: a file reached by two names is one file.
    _seen: set[Path] = field(default_factory=set)
    _open: list[Path] = field(default_factory=list)

    def load(self, path: Path, *, said_at: SourceLocation | None) -> None:
        real = path.resolve()
        if real in self._open:
            self._complain(said_at, f"{path} includes itself: {self._way_round(real)}")
            return
        if real in self._seen:
            return
        self._seen.add(real)
        self.links += find_symlinks(path, self.directory)
        source = self._read(path, said_at)
        if source is None:
            return
        self.files.append(source)
        self._open.append(real)
        for included, place in self._includes(source):
            self.load(included, said_at=place)
        self._open.pop()

    def _read(self, path: Path, said_at: SourceLocation | None) -> ConfigFile | None:
        try:
            data = self.overlay[path] if path in self.overlay else read_regular_file(path)
            tree = parse_yaml(data, file=str(path))
        except OSError as error:
            self._complain(said_at, f"{path} cannot be read: {error.strerror}")
        except ConfigError as error:
            self.problems += error.problems
        else:
            nowhere = SourceLocation(file=str(path), line=1, column=1)
            tree = MapNode(entries=(), place=nowhere) if tree is None or is_empty(tree) else tree
            if isinstance(tree, MapNode):
                return ConfigFile(path=path, data=data, tree=tree)
            found = "a list" if isinstance(tree, ListNode) else "text"
            self.problems.append(
                problem_at(
                    tree.place, (), "a configuration file is a map of sections", expected="a map", found=found
                )
            )
        return None

    def _includes(self, source: ConfigFile) -> list[tuple[Path, SourceLocation]]:
        named = source.tree.get("include")
        if not isinstance(named, ListNode):  # anything else is told by the decoder, with its kind
            return []
        found: list[tuple[Path, SourceLocation]] = []
        for index, item in enumerate(named.items):
            text = self._local_path(item, ("include", index))
            if text is not None:
                found += ((path, item.place) for path in self._expand(source.path.parent / text, item.place))
        return found

    def _local_path(self, item: Node, path: KeyPath) -> str | None:
        if not isinstance(item, ScalarNode):
            return None
        if has_reference(item.text):
            hint = "write the path itself; which files are loaded must not depend on the environment"
            self._complain(item.place, "an include cannot use variables", path=path, hint=hint)
        elif is_url(item.text):
            self._complain(item.place, "an include has to be a local file, not a URL", path=path)
        elif not item.text.strip():
            self._complain(item.place, "this include is empty", path=path)
        else:
            return item.text
        return None

    def _expand(self, path: Path, place: SourceLocation) -> list[Path]:
        try:
            return self._included(path, place)
        except PermissionError as error:
            self._complain(place, f"the included {path} cannot be read: {error.strerror}")
            return []

    def _included(self, path: Path, place: SourceLocation) -> list[Path]:
        if not path.is_dir():
            if not path.exists() and path not in self.overlay:
                hint = f"create it, or remove the include; it is looked for relative to {place.file}"
                self._complain(place, f"the included {path} does not exist", hint=hint)
                return []
            return [path]
        self.links += find_symlinks(path, self.directory)
        return sorted(
            file
            for file in path.iterdir()
            if file.suffix in _SUFFIXES and file.name[0] != "." and file.is_file()
        )

    def _way_round(self, real: Path) -> str:
        way = [*self._open[self._open.index(real) :], real]
        return " → ".join(path.name for path in way)

    def _complain(
        self,
        place: SourceLocation | None,
        message: str,
        *,
        path: KeyPath = ("include",),
        hint: str | None = None,
    ) -> None:
        self.problems.append(problem_at(place, path if place else (), message, hint=hint))


def find_symlinks(path: Path, directory: Path) -> list[Path]:
    """Symbolic links among the config directory, the path, and what lies between them."""
    steps = [path]
    if path.is_relative_to(directory):
        steps = [
            directory,
            *(parent for parent in reversed(path.parents) if parent.is_relative_to(directory)),
            path,
        ]
    return [step for step in dict.fromkeys(steps) if step.is_symlink()]
