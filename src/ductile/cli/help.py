"""Help, made from the table of commands."""

from __future__ import annotations

from ductile.cli.command_table import (
    EVERYWHERE,
    NOUNS,
    SHORT_FORMS,
    VERSION,
    VERSION_ACTION,
    Action,
    Noun,
    Option,
)
from ductile.cli.console.wrap import wrap, wrap_hanging

#: Whatever the terminal, so that the same text is seen everywhere.
_WIDTH = 80


def overview() -> str:
    """`ductile --help`"""
    return "\n".join(
        (
            "Usage: ductile NOUN ACTION [ARGUMENTS] [OPTIONS]",
            "",
            "Ductile runs plugins on schedules, events and requests, and loses no job.",
            "",
            "Nouns:",
            *_pairs([(noun.name, noun.summary) for noun in NOUNS]),
            "",
            "Short forms:",
            *_pairs([(form.name, form.summary) for form in SHORT_FORMS]),
            *_pairs([(VERSION_ACTION.name, VERSION_ACTION.summary)]),
            "",
            "Options, before or after the action:",
            *_pairs([option_line(option) for option in (*EVERYWHERE, VERSION)]),
            "",
            "`ductile NOUN --help` lists a noun's actions. Start with `ductile init DIR`.",
        )
    )


def about_noun(noun: Noun) -> str:
    """`ductile config --help`"""
    return "\n".join(
        (
            f"Usage: ductile {noun.name} ACTION [ARGUMENTS] [OPTIONS]",
            "",
            f"{noun.name}: {noun.summary}.",
            "",
            "Actions:",
            *_pairs([(usage_words(action), action.summary) for action in noun.actions]),
            "",
            f"`ductile {noun.name} ACTION --help` tells more.",
        )
    )


def about_action(words: str, action: Action) -> str:
    """`ductile config set --help`; `words` is how it was called."""
    signature = " ".join((words, *(argument_words(action))))
    about = ("", *wrap(action.about, _WIDTH)) if action.about else ()
    arguments = [(argument.name, argument.help) for argument in action.arguments]
    options = [option_line(option) for option in (*action.options, *EVERYWHERE)]
    return "\n".join(
        (
            f"Usage: ductile {signature} [OPTIONS]",
            "",
            *wrap(_sentence(action.summary), _WIDTH),
            *about,
            *(("", "Arguments:", *_pairs(arguments)) if arguments else ()),
            "",
            "Options:",
            *_pairs(options),
            *example_lines(action),
        )
    )


def example_lines(action: Action) -> tuple[str, ...]:
    """What it is for as a comment above each, so that all of it can be copied into a shell."""
    lines = [f"  {line}" for each in action.examples for line in (f"# {each.does}", each.line)]
    return ("", "Examples:", *lines) if lines else ()


def usage_words(action: Action) -> str:
    return " ".join((action.name, *argument_words(action)))


def argument_words(action: Action) -> tuple[str, ...]:
    return tuple(
        argument.name if argument.required else f"[{argument.name}]" for argument in action.arguments
    )


def option_line(option: Option) -> tuple[str, str]:
    flags = ", ".join(option.flags)
    return (f"{flags} {option.metavar}" if option.metavar else flags, option.help)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _pairs(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [
        line
        for left, right in rows
        for line in wrap_hanging(f"  {left.ljust(max(width, 14))}  ", right, _WIDTH)
    ]
