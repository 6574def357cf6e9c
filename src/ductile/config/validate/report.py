"""Collects the errors and warnings of a configuration, each with its location."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from ductile.config.schema.parse import describe
from ductile.errors import Problem
from ductile.protocol.yaml_tree import (
    KeyPath,
    MapNode,
    is_empty,
    location_of,
    node_at,
    problem_at,
)


@dataclass(slots=True)
class ValidationReport:
    """The problems of a configuration. Rules add to it; `root` is the tree that gives the locations."""

    root: MapNode
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    #: Returns the names of the plugins in the roots; None if they are not known. Called only for an error.
    list_installed_plugins: Callable[[], Collection[str]] | None = None

    def error(self, path: KeyPath, message: str, **parts: str | None) -> None:
        """Add an error; `parts` are `expected`, `found` and `hint`."""
        self.errors.append(problem_at(location_of(self.root, path), path, message, **parts))

    def warn(self, path: KeyPath, message: str, *, hint: str | None = None) -> None:
        self.warnings.append(problem_at(location_of(self.root, path), path, message, hint=hint))

    def is_written(self, path: KeyPath) -> bool:
        """Return whether there is a value at a path, readable or not; an empty value does not count."""
        return not is_empty(node_at(self.root, path))

    def quote(self, path: KeyPath) -> str:
        """Return the value at a path for a message: the reference where it came from a variable."""
        node = node_at(self.root, path)
        return describe(node) if node is not None else "nothing"

    def refuse_duplicates(
        self, kind: str, names: Iterable[tuple[Hashable, KeyPath]], *, hint: str = "rename one of them"
    ) -> None:
        """Add an error for each name that occurs a second time, with the location of the first."""
        first: dict[Hashable, KeyPath] = {}
        for name, path in names:
            if name in first:
                message = f'the {kind} "{name}" occurs twice, first at {self.where(first[name])}'
                self.error(path, message, hint=hint)
            else:
                first[name] = path

    def require_one(self, path: KeyPath, written: Sequence[str], message: str, *, expected: str) -> bool:
        """Add an error unless exactly one key is given. Returns whether it is."""
        if len(written) != 1:
            self.error(path, message, expected=expected, found=" and ".join(written) or "none of them")
        return len(written) == 1

    def where(self, path: KeyPath) -> str:
        """Return file and line of the value at a path, for a message about another one."""
        location = location_of(self.root, path)
        return f"{location.file}:{location.line}"
