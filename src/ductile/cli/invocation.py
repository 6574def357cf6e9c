"""The invocation of a command: its arguments and environment, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from ductile.cli.console.console import Console
    from ductile.cli.remote import RemoteDaemon
    from ductile.cli.spec import Action, Option
    from ductile.core.json import JsonObject, JsonValue


class Invocation(NamedTuple):
    """One call of a command: its arguments by name, and the environment it runs in."""

    action: Action
    arguments: Mapping[str, str | bool | list[str] | None]
    config: str | None
    verbose: bool
    environ: Mapping[str, str]
    json: bool
    #: For output that is printed piece by piece. All other output belongs into the `CommandResult`.
    out: TextIO
    #: The daemon of --url, on another machine; None for the daemon of this machine.
    remote: RemoteDaemon | None = None
    #: --config, --url and the like as they were typed: hints repeat them in commands to copy.
    daemon_options: str | None = None

    def text(self, name: str) -> str:
        """Return a required argument."""
        return str(self.arguments[name])

    def optional(self, name: str) -> str | None:
        value = self.arguments.get(name)
        return None if value is None else str(value)

    def words(self, name: str) -> tuple[str, ...]:
        """Return an argument that takes several words."""
        value = self.arguments.get(name)
        return tuple(value) if isinstance(value, list) else ()

    def switch(self, name: str) -> bool:
        return bool(self.arguments.get(name))

    def json_object(self, name: str) -> JsonObject | None:
        """Return the JSON object in an option, or in the file that it names. Raises UsageError."""
        text = self.optional(name)
        if text is None:
            return None
        import json

        from ductile.errors import UsageError

        source, content = _read_text(text, name)
        try:
            payload = json.loads(content)
        except json.JSONDecodeError as error:
            raise UsageError(
                f"{source} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
                hint=f"""write an object, for example --{name} '{{"name": "Ada"}}'""",
            ) from None
        except RecursionError:
            raise UsageError(f"{source} nests too deep") from None
        if not isinstance(payload, dict):
            raise UsageError(f"{source} must be a JSON object", hint='wrap it: {"value": ...}')
        return payload

    def duration(self, name: str) -> timedelta | None:
        """Return the duration that an option holds. Raises UsageError for other text."""
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
        """Return the fields of the operation's request that the command line sets."""
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
            case "instant":
                from datetime import UTC, datetime
                from zoneinfo import ZoneInfo

                from ductile.config.timezones import system_timezone
                from ductile.core.instants import InstantError, parse_instant
                from ductile.errors import UsageError

                # Read here, because the time zone of the user can differ from that of the daemon.
                zone = ZoneInfo(system_timezone(self.environ))
                try:
                    instant = parse_instant(text, now=datetime.now(UTC), zone=zone)
                except InstantError as error:
                    raise UsageError(
                        f"{option.field}: {error}",
                        hint=f"write {error.expected}",
                        details={"field": option.field},
                    ) from None
                return f"{instant:%Y-%m-%dT%H:%M:%S.%fZ}"
            case "json":
                return self.json_object(option.destination)
            case "list":
                return [word.strip() for word in text.split(",")]
            case _:
                return text


class CommandResult(NamedTuple):
    """The result of a command, as data for programs and as text for people. A text that depends on the
    terminal, or that takes time to make, is a function: it is not called with --json.
    """

    #: None if the command has printed all of its output already.
    data: JsonObject | None
    #: None if nothing is printed on standard output.
    text: str | Callable[[Console], str] | None = None
    exit_status: int = 0
    #: A note for people on standard error, so that standard output holds the result alone.
    note: str | Callable[[Console], str] | None = None


def _read_text(text: str, option: str) -> tuple[str, str]:
    """Return the name of the value in errors, and its text: of a file, of standard input or as typed."""
    import sys
    from pathlib import Path

    from ductile.errors import UsageError

    try:
        if text == "-":
            return "standard input", sys.stdin.read()
        if text == "@":
            raise UsageError(f"--{option} @ names no file", hint=f"write --{option} @FILE")
        if text.startswith("@"):
            return text[1:], Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{text[1:]} cannot be read: {error.strerror}", hint=f"it is looked for in {Path.cwd()}"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{text[1:] or 'standard input'} is not UTF-8 text") from None
    return f"the {option}" if option == "payload" else f"--{option}", text
