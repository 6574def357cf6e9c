"""Parse the words of a command line into a command and its arguments.

Of all actions, only the typed one gets a parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ductile.cli.command_table import (
    VERSION_COMMAND,
    Noun,
    find_noun,
    find_short_form,
    load_action,
)
from ductile.cli.spec import CONFIG, DAEMON_OPTIONS, GLOBAL_OPTIONS, HELP, JSON, VERBOSE, VERSION, Action

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from ductile.errors import UsageError


class ParsedCommand(NamedTuple):
    """A parsed command line. Without an action, it asks for help: for that of the noun, or the overview."""

    noun: Noun | None = None
    action: Action | None = None
    #: The words that name the command, such as `job list`.
    command: str = ""
    arguments: Mapping[str, str | bool | list[str] | None] = {}
    config: str | None = None
    url: str | None = None
    token_env: str | None = None
    ca: str | None = None
    json: bool = False
    verbose: bool = False
    help: bool = False


def words_before_separator(words: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`, the separator after which no word is an option."""
    return words[: list(words).index("--")] if "--" in words else words


def wants_json(words: Sequence[str]) -> bool:
    """Return whether errors are written as JSON. Also works for a line that cannot be parsed."""
    return JSON.flags[0] in words_before_separator(words)


def find_daemon_options(words: Sequence[str]) -> str | None:
    """Return --config, --url and the like as typed, for the commands in hints; None without any of them.

    Also works for a line that cannot be parsed.
    """
    options = words_before_separator(words)
    last_values: dict[str, str] = {}
    for word, next_word in zip(options, [*options[1:], None], strict=True):
        flag, equals, value = word.partition("=")
        if equals or next_word is not None:
            last_values[flag] = value if equals else str(next_word)
    flags = [option.flags[0] for option in DAEMON_OPTIONS if last_values.get(option.flags[0])]
    if not flags:
        return None
    import shlex

    return " ".join(f"{flag} {shlex.quote(last_values[flag])}" for flag in flags)


def parse(words: Sequence[str]) -> ParsedCommand:
    """Parse a command line. Raises UsageError, with a suggestion, for a line that is no command."""
    remaining = list(words)
    parsed = _take_options(remaining, ParsedCommand())
    if not remaining:
        return parsed
    first = remaining.pop(0)
    if first == "help":
        return parse([*remaining[:2], HELP.flags[-1], *(JSON.flags if parsed.json else ())])
    if first in (VERSION_COMMAND.name, *VERSION.flags):
        name = VERSION_COMMAND.name
        return _parse_action(parsed._replace(command=name, action=load_action(name, name)), remaining)
    short_form, noun = find_short_form(first), find_noun(first)
    # `queue` alone is a short form; it is a noun if an action or a request for help follows.
    if noun is not None and remaining:
        is_noun = any(word in HELP.flags or word in noun.modules for word in remaining)
        short_form = None if is_noun or not remaining[0].startswith("-") else short_form
    if short_form is not None:
        noun = find_noun(short_form.noun)
        if noun is not None and first == f"{noun.name}s" and remaining and remaining[0] in noun.modules:
            from ductile.cli.suggestions import suggest_command

            raise _usage_error(
                f"unknown command '{first} {remaining[0]}'", hint=suggest_command(first, remaining)
            )
        action = None if noun is None else noun.action(short_form.action)
        return _parse_action(parsed._replace(command=first, noun=noun, action=action), remaining)
    if noun is None:
        from ductile.cli.suggestions import suggest_command

        raise _usage_error(f"unknown command {first!r}", hint=suggest_command(first, remaining))
    parsed = _take_options(remaining, parsed)._replace(noun=noun)
    if not remaining:
        return parsed
    word = remaining.pop(0)
    action = noun.action(word)
    if action is None:
        from ductile.cli.suggestions import suggest_action

        raise _usage_error(f"{noun.name} has no action {word!r}", hint=suggest_action(noun, word))
    return _parse_action(parsed._replace(action=action, command=f"{noun.name} {action.name}"), remaining)


def _take_options(remaining: list[str], parsed: ParsedCommand) -> ParsedCommand:
    """Remove the global options at the front of the words, and return the command with them set."""
    options = {flag: option for option in GLOBAL_OPTIONS for flag in option.flags}
    while remaining and remaining[0].startswith("-") and remaining[0] not in VERSION.flags:
        flag, equals, value = remaining.pop(0).partition("=")
        option = options.get(flag)
        if option is None:
            flags = (*options, *VERSION.flags)
            from ductile.cli.suggestions import suggest_option

            raise _usage_error(f"unknown option {flag!r}", hint=suggest_option(flag, flags, "ductile --help"))
        if option in DAEMON_OPTIONS:
            if not equals and not remaining:
                kind = "a path" if option is CONFIG else "a value"
                raise _usage_error(f"{flag} needs {kind}", hint=f"write {option.usage}")
            changed: dict[str, Any] = {option.destination: value if equals else remaining.pop(0)}
            parsed = parsed._replace(**changed)
        parsed = parsed._replace(
            json=parsed.json or option is JSON,
            verbose=parsed.verbose or option is VERBOSE,
            help=parsed.help or option is HELP,
        )
    return parsed


def _parse_action(parsed: ParsedCommand, remaining: list[str]) -> ParsedCommand:
    action = parsed.action
    if action is None:
        return parsed
    trailing_name = next((argument.name for argument in action.arguments if argument.trailing), None)
    words: tuple[str, ...] = ()
    if trailing_name is not None:
        remaining, words = _split_trailing(remaining, action)
    if parsed.help or any(flag in words_before_separator(remaining) for flag in HELP.flags):
        return parsed._replace(help=True)
    if trailing_name is not None and not words:
        see = f"ductile {parsed.command} --help"
        raise _usage_error(f"ductile {parsed.command} needs {trailing_name}", hint=f"see `{see}`")
    values = vars(_build_parser(action, parsed.command).parse_args(remaining))
    if trailing_name is not None:
        values[trailing_name] = list(words)
    names = [argument.name for argument in action.arguments]
    options = [option.destination for option in action.options]
    return parsed._replace(
        arguments={name: values[name] for name in (*names, *options)},
        **{
            option.destination: getattr(parsed, option.destination)
            if values[option.destination] is None
            else values[option.destination]
            for option in DAEMON_OPTIONS
        },
        json=values[JSON.destination] or parsed.json,
        verbose=values[VERBOSE.destination] or parsed.verbose,
    )


def _split_trailing(words: list[str], action: Action) -> tuple[list[str], tuple[str, ...]]:
    """Split the words into the options of the command and its trailing argument.

    The trailing argument begins after `--`, or with the first word that is no option.
    """
    options = (*action.options, *DAEMON_OPTIONS)
    takes_value = {flag for option in options if option.metavar is not None for flag in option.flags}
    position = 0
    while position < len(words) and words[position].startswith("-"):
        if words[position] == "--":
            return words[:position], tuple(words[position + 1 :])
        position += 2 if words[position] in takes_value else 1
    return words[:position], tuple(words[position:])


def _build_parser(action: Action, command: str) -> argparse.ArgumentParser:
    import argparse

    options = (*action.options, *DAEMON_OPTIONS, JSON, VERBOSE)

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            flags = [flag for option in (HELP, *options) for flag in option.flags]
            wrong_flags = [
                word.rstrip(":") for word in message.replace("/", " ").split() if word.startswith("-")
            ]
            see = f"ductile {command} --help"
            from ductile.cli.suggestions import suggest_option

            hint = suggest_option(wrong_flags[0], flags, see) if wrong_flags else f"see `{see}`"
            raise _usage_error(_reword(message, command), hint=hint)

    parser = Parser(prog=f"ductile {command}", add_help=False, allow_abbrev=False)
    for argument in action.arguments:
        if argument.trailing:
            continue
        if argument.variadic:
            parser.add_argument(argument.name, nargs="+" if argument.required else "*")
        else:
            parser.add_argument(argument.name, nargs=None if argument.required else "?")
    for option in options:
        if option.metavar:
            action_name = "append" if option.repeatable else "store"
            parser.add_argument(*option.flags, dest=option.destination, action=action_name)
        else:
            parser.add_argument(*option.flags, dest=option.destination, action="store_true")
    return parser


def _reword(message: str, command: str) -> str:
    """Return an error message of argparse in the style of the other messages of the command line."""
    problem, _, names = message.partition(": ")
    if problem == "the following arguments are required":
        return f"ductile {command} needs {names.replace(', ', ' and ')}"
    if problem == "unrecognized arguments":
        import re

        masked = re.sub(r"://[^\s@]*@", "://…@", names)  # without user and password
        return f"unexpected {'option' if names.startswith('-') else 'argument'}: {masked}"
    if names == "expected one argument":
        return f"{problem.removeprefix('argument ').replace('/', ' or ')} needs a value"
    return message


def _usage_error(message: str, *, hint: str) -> UsageError:
    from ductile.errors import UsageError

    return UsageError(message, hint=hint)
