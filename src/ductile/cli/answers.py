"""What a command gets and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ductile.errors import Exit

if TYPE_CHECKING:
    from ductile.cli.screen import Screen
    from ductile.core.json_values import JsonObject


class Call(NamedTuple):
    """One invocation: the arguments by name, and the surroundings as values."""

    arguments: Mapping[str, str | bool | None]
    config: str | None
    verbose: bool
    environ: Mapping[str, str]

    def text(self, name: str) -> str:
        """An argument that has to be given."""
        return str(self.arguments[name])

    def optional(self, name: str) -> str | None:
        value = self.arguments.get(name)
        return None if value is None else str(value)

    def switch(self, name: str) -> bool:
        return bool(self.arguments.get(name))


class Answer(NamedTuple):
    """The same answer for programs and for people; only the one that was asked for is rendered."""

    data: JsonObject
    text: Callable[[Screen], str]
    exit_status: Exit = Exit.OK


Command: TypeAlias = Callable[[Call], Answer]
