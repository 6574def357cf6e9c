"""From words to a call: which command is meant, and what it is given.

Only the parser of the one action that was asked for is ever built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ductile.cli.command_table import (
    CONFIG,
    EVERYWHERE,
    HELP,
    JSON,
    NOUNS,
    VERBOSE,
    VERSION,
    VERSION_ACTION,
    Action,
    Noun,
    find_noun,
    find_short_form,
    first_words,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from ductile.errors import UsageError


class ParsedCommand(NamedTuple):
    """What the words ask for. Without an action, help is meant: that of the noun, or of everything."""

    noun: Noun | None = None
    action: Action | None = None
    words: str = ""
    arguments: Mapping[str, str | bool | None] = {}
    config: str | None = None
    json: bool = False
    verbose: bool = False
    help: bool = False


class _LeadingOptions(NamedTuple):
    """The options that stood before the action."""

    config: str | None = None
    json: bool = False
    verbose: bool = False
    help: bool = False

    def taking(self, option: str, value: str | None) -> _LeadingOptions:
        if option in CONFIG.flags:
            return self._replace(config=value)
        if option in JSON.flags:
            return self._replace(json=True)
        if option in VERBOSE.flags:
            return self._replace(verbose=True)
        return self._replace(help=True)


def wants_json(words: Sequence[str]) -> bool:
    """Also for a line that cannot be parsed: whoever asks for JSON gets its error as JSON."""
    options = words[: list(words).index("--")] if "--" in words else words
    return JSON.flags[0] in options


def parse(words: Sequence[str]) -> ParsedCommand:
    rest = list(words)
    lead = _take_options(rest, _LeadingOptions())
    if not rest:
        return ParsedCommand(config=lead.config, json=lead.json, verbose=lead.verbose, help=lead.help)
    first = rest.pop(0)
    if first == "help":
        return parse([*rest[:2], HELP.flags[-1], *(JSON.flags if lead.json else ())])
    if first in (VERSION_ACTION.name, *VERSION.flags):
        return _parse_action(None, VERSION_ACTION, VERSION_ACTION.name, lead, rest)
    if (form := find_short_form(first)) is not None and not _means_noun(first, rest):
        noun = find_noun(form.noun)
        action = None if noun is None else noun.action(form.action)
        if action is not None:
            return _parse_action(noun, action, first, lead, rest)
    return _parse_noun(first, lead, rest)


def _means_noun(name: str, rest: list[str]) -> bool:
    """`queue` alone lists the queue, and is a noun as soon as an action or a wish for help follows."""
    noun = find_noun(name)
    if noun is None or not rest:
        return False
    return not rest[0].startswith("-") or any(word in HELP.flags or noun.action(word) for word in rest)


def _parse_noun(name: str, lead: _LeadingOptions, rest: list[str]) -> ParsedCommand:
    noun = find_noun(name)
    if noun is None:
        raise _usage(f"unknown command {name!r}", hint=_meant(name))
    lead = _take_options(rest, lead)
    if not rest:
        return ParsedCommand(
            noun=noun, config=lead.config, json=lead.json, verbose=lead.verbose, help=lead.help
        )
    word = rest.pop(0)
    action = noun.action(word)
    if action is None:
        known = tuple(each.name for each in noun.actions)
        raise _usage(
            f"{noun.name} has no action {word!r}",
            hint=_suggestion(word, known, f"ductile {noun.name} --help", before=f"ductile {noun.name} "),
        )
    return _parse_action(noun, action, f"{noun.name} {action.name}", lead, rest)


def _take_options(rest: list[str], lead: _LeadingOptions) -> _LeadingOptions:
    """Take the common options from the front of the words."""
    known = {flag for option in EVERYWHERE for flag in option.flags}
    while rest and rest[0].startswith("-") and rest[0] not in VERSION.flags:
        option, given, value = rest.pop(0).partition("=")
        if option not in known:
            flags = (*known, *VERSION.flags)
            raise _usage(f"unknown option {option!r}", hint=_suggestion(option, flags, "ductile --help"))
        if option in CONFIG.flags and not given:
            if not rest:
                raise _usage(f"{option} needs a path", hint=f"write {option} PATH")
            value = rest.pop(0)
        lead = lead.taking(option, value)
    return lead


def _parse_action(
    noun: Noun | None, action: Action, words: str, lead: _LeadingOptions, rest: list[str]
) -> ParsedCommand:
    if lead.help or _asks_for_help(rest):
        return ParsedCommand(noun=noun, action=action, words=words, json=lead.json, help=True)
    found = vars(_parser(action, words).parse_args(rest))
    names = [argument.name for argument in action.arguments]
    options = [option.destination for option in action.options]
    return ParsedCommand(
        noun=noun,
        action=action,
        words=words,
        arguments={name: found[name] for name in (*names, *options)},
        config=found[CONFIG.destination] or lead.config,
        json=found[JSON.destination] or lead.json,
        verbose=found[VERBOSE.destination] or lead.verbose,
    )


def _asks_for_help(rest: list[str]) -> bool:
    options = rest[: rest.index("--")] if "--" in rest else rest
    return any(flag in options for flag in HELP.flags)


def _parser(action: Action, words: str) -> argparse.ArgumentParser:
    import argparse  # noqa: PLC0415 - help for the whole program is shown without it

    options = (*action.options, CONFIG, JSON, VERBOSE)

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise _usage(_readable(message, words), hint=_hint(message, words, options))

    parser = Parser(prog=f"ductile {words}", add_help=False, allow_abbrev=False)
    for argument in action.arguments:
        parser.add_argument(argument.name, nargs=None if argument.required else "?")
    for option in options:
        if option.metavar:
            parser.add_argument(*option.flags, dest=option.destination)
        else:
            parser.add_argument(*option.flags, dest=option.destination, action="store_true")
    return parser


def _readable(message: str, words: str) -> str:
    """What argparse says, in our words."""
    kind, _, names = message.partition(": ")
    if kind == "the following arguments are required":
        return f"ductile {words} needs {names.replace(', ', ' and ')}"
    if kind == "unrecognized arguments":
        return f"unexpected {'option' if names.startswith('-') else 'argument'}: {names}"
    if names == "expected one argument":
        return f"{kind.removeprefix('argument ').replace('/', ' or ')} needs a value"
    return message


def _hint(message: str, words: str, options: Sequence[object]) -> str:
    known = [flag for option in (*EVERYWHERE, *options) for flag in getattr(option, "flags", ())]
    wrong = [word.rstrip(":") for word in message.replace("/", " ").split() if word.startswith("-")]
    return (
        _suggestion(wrong[0], known, f"ductile {words} --help") if wrong else f"see `ductile {words} --help`"
    )


def _usage(message: str, *, hint: str) -> UsageError:
    from ductile.errors import UsageError  # noqa: PLC0415 - only for mistakes, and help is to be quick

    return UsageError(message, hint=hint)


def _meant(word: str) -> str:
    """A hint for a first word that is none: an action without its noun, or one that is spelled nearly so."""
    if having := [noun.name for noun in NOUNS if noun.action(word) is not None]:
        *others, last = [f"`ductile {noun} {word}`" for noun in having]
        return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}? See `ductile --help`"
    return _suggestion(word, first_words(), "ductile --help", before="ductile ")


def _suggestion(word: str, known: Sequence[str], see: str, before: str = "") -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for mistakes

    if word in known:  # what is wrong is something else about it
        return f"see `{see}`"
    # Without their dashes, which make any two options look alike.
    names = {each.lstrip("-"): each for each in known}
    near = [names[name] for name in get_close_matches(word.lstrip("-").partition("=")[0], names, n=1)]
    return f"did you mean `{before}{near[0]}`? See `{see}`" if near else f"see `{see}`"
