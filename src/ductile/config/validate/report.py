"""A growing list of what is wrong and what is doubtful in a configuration, each with its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ductile.config.key_paths import KeyPath, format_path, node_at, place_of, problem_at
from ductile.config.read.merge import is_empty
from ductile.config.schema.parse import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable

    from ductile.errors import Problem
    from ductile.protocol.yaml import MapNode


@dataclass(slots=True)
class ValidationReport:
    root: MapNode
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    #: Configured plugins that are in none of the roots. Asked for only when something is wrong.
    absent: Callable[[], Collection[str]] = frozenset

    def error(
        self,
        path: KeyPath,
        message: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        place = place_of(self.root, path)
        self.errors.append(problem_at(place, path, message, expected=expected, found=found, hint=hint))

    def warn(self, path: KeyPath, message: str, *, hint: str | None = None) -> None:
        self.warnings.append(problem_at(place_of(self.root, path), path, message, hint=hint))

    def is_written(self, path: KeyPath) -> bool:
        """Whether something stands at a path, readable or not; an empty value does not count."""
        node = node_at(self.root, path)
        return node is not None and not is_empty(node)

    def quote(self, path: KeyPath) -> str:
        """What is written at a path, fit for a message: the reference where a variable supplied it."""
        node = node_at(self.root, path)
        return describe(node) if node is not None else "nothing"

    def refuse_duplicates(
        self, what: str, named: Iterable[tuple[Hashable, KeyPath]], *, hint: str = "rename one of them"
    ) -> None:
        """Each thing that occurs again is an error which names both places."""
        first: dict[Hashable, KeyPath] = {}
        for name, path in named:
            if name not in first:
                first[name] = path
                continue
            shown = name[-1] if isinstance(name, tuple) else name
            message = f'the {what} "{shown}" occurs twice, first at {self.where(first[name])}'
            self.error(path, message, hint=hint)

    def where(self, path: KeyPath) -> str:
        """File and line of what is written at a path, to be named in a message about something else."""
        place = place_of(self.root, path)
        return f"{place.file}:{place.line}" if place else format_path(path)
