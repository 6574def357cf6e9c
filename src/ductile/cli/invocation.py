"""What a command is called with, and what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from ductile.cli.console.console import Console
    from ductile.cli.spec import Action, Option
    from ductile.core.json import JsonObject, JsonValue


class Invocation(NamedTuple):
    """One call of a command: its arguments by name, and the environment it runs in."""

    action: Action
    arguments: Mapping[str, str | bool | None]
    config: str | None
    verbose: bool
    environ: Mapping[str, str]
    json: bool
    #: For output that comes piece by piece. Output that is known at once belongs into the `CommandResult`.
    out: TextIO

    def text(self, name: str) -> str:
        """An argument that is required."""
        return str(self.arguments[name])

    def optional(self, name: str) -> str | None:
        value = self.arguments.get(name)
        return None if value is None else str(value)

    def switch(self, name: str) -> bool:
        return bool(self.arguments.get(name))

    def json_object(self, name: str) -> JsonObject | None:
        """The JSON object that an option gives, in a file or directly. UsageError if it is not one."""
        from ductile.cli.json_argument import json_object

        return json_object(self.optional(name), name)

    def duration(self, name: str) -> timedelta | None:
        """The duration that an option gives. UsageError if it is not one."""
        text = self.optional(name)
        if text is None:
            return None
        from ductile.core.durations import QuantityError, parse_duration
        from ductile.errors import UsageError

        try:
            return parse_duration(text)
        except QuantityError as error:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag}: {error}", hint=f"expected {error.expected}") from None

    def request_fields(self) -> JsonObject:
        """The fields of the operation's request that were given on the command line."""
        fields: JsonObject = {}
        for argument in self.action.arguments:
            if argument.field and (text := self.optional(argument.name)) is not None:
                fields[argument.field] = text
        for option in self.action.options:
            if option.field and self.arguments.get(option.destination) not in (None, False):
                fields[option.field] = self._value(option)
        return fields

    def _value(self, option: Option) -> JsonValue:
        if option.metavar is None:
            return True
        text = self.text(option.destination)
        match option.type:
            case "integer":
                if not (text.isascii() and text.isdigit()):
                    from ductile.errors import UsageError

                    raise UsageError(f"{option.flags[-1]} needs a whole number, not {text!r}")
                return int(text)
            case "json":
                return self.json_object(option.destination)
            case "list":
                return [word.strip() for word in text.split(",")]
            case _:
                return text


class CommandResult(NamedTuple):
    """One result for programs and for people; only the form that was asked for is rendered."""

    #: None if everything has been printed already.
    data: JsonObject | None
    #: None if nothing is printed on standard output.
    text: Callable[[Console], str] | None = None
    exit_status: int = 0
    #: A note for people on standard error, so that standard output holds the result alone.
    note: Callable[[Console], str] | None = None
