"""What a command gets and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeAlias

from ductile.errors import Exit, UsageError

if TYPE_CHECKING:
    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject


class Invocation(NamedTuple):
    """One invocation: the arguments by name, and the surroundings as values."""

    arguments: Mapping[str, str | bool | None]
    config: str | None
    verbose: bool
    environ: Mapping[str, str]
    json: bool
    #: For answers that come bit by bit; whatever is known at once belongs into the `CommandResult`.
    out: TextIO

    def text(self, name: str) -> str:
        """An argument that has to be given."""
        return str(self.arguments[name])

    def optional(self, name: str) -> str | None:
        value = self.arguments.get(name)
        return None if value is None else str(value)

    def number(self, name: str) -> int | None:
        value = self.optional(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise UsageError(f"--{name} needs a whole number, not {value!r}")
        return int(value)

    def switch(self, name: str) -> bool:
        return bool(self.arguments.get(name))


class CommandResult(NamedTuple):
    """The same answer for programs and for people; only the one that was asked for is rendered."""

    #: None where everything has been shown already.
    data: JsonObject | None
    #: None where there is nothing to print on standard output.
    text: Callable[[Console], str] | None = None
    exit_status: Exit = Exit.OK
    #: What people are told beside the answer, on standard error: it is not what a script asked for.
    aside: Callable[[Console], str] | None = None


CommandHandler: TypeAlias = Callable[[Invocation], CommandResult]
