"""Help, rendered from the table of commands."""

from __future__ import annotations

from ductile.cli.command_table import NOUNS, SHORT_FORMS, VERSION_COMMAND, Noun
from ductile.cli.console.table import wrap, wrap_hanging
from ductile.cli.spec import GLOBAL_OPTIONS, VERSION, Action

#: The same on every terminal, so that all users see the same text.
_WIDTH = 80


def overview() -> str:
    """Return the text of `ductile --help`."""
    return "\n".join(
        (
            "Usage: ductile NOUN ACTION [ARGUMENTS] [OPTIONS]",
            "",
            "Ductile runs plugins on schedules, events and requests, and loses no job.",
            "",
            "Nouns:",
            *_two_columns([(noun.name, noun.summary) for noun in NOUNS]),
            "",
            "Short forms:",
            *_two_columns([(form.name, form.summary) for form in SHORT_FORMS]),
            *_two_columns([(VERSION_COMMAND.name, VERSION_COMMAND.summary)]),
            "",
            "Options, before or after the action:",
            *_two_columns([(option.usage, option.help) for option in (*GLOBAL_OPTIONS, VERSION)]),
            "",
            "`ductile NOUN --help` lists a noun's actions. Start with `ductile init DIR`.",
        )
    )


def noun_help(noun: Noun) -> str:
    """Return the help of a noun, such as `ductile config --help`."""
    return "\n".join(
        (
            f"Usage: ductile {noun.name} ACTION [ARGUMENTS] [OPTIONS]",
            "",
            f"{noun.name}: {noun.summary}.",
            "",
            "Actions:",
            *_two_columns([(signature(action.name, action), action.summary) for action in noun.actions]),
            "",
            f"`ductile {noun.name} ACTION --help` shows more.",
        )
    )


def action_help(command: str, action: Action) -> str:
    """Return the help of a command, such as `ductile config set --help`. `command` is as typed."""
    about = ("", *wrap(action.about, _WIDTH)) if action.about else ()
    arguments = [(argument.name, argument.help) for argument in action.arguments]
    options = [(option.usage, option.help) for option in (*action.options, *GLOBAL_OPTIONS)]
    # The purpose is a shell comment, so that all lines can be copied into a shell.
    examples = [f"  {line}" for example in action.examples for line in (f"# {example.purpose}", example.line)]
    return "\n".join(
        (
            f"Usage: ductile {signature(command, action)} [OPTIONS]",
            "",
            *wrap(f"{action.summary[0].upper()}{action.summary[1:]}.", _WIDTH),
            *about,
            *(("", "Arguments:", *_two_columns(arguments)) if arguments else ()),
            "",
            "Options:",
            *_two_columns(options),
            *(("", "Examples:", *examples) if examples else ()),
        )
    )


def signature(command: str, action: Action) -> str:
    """Return the command as typed, followed by its arguments."""
    names = (
        (argument, f"{argument.name}…" if argument.variadic else argument.name)
        for argument in action.arguments
    )
    return " ".join((command, *(name if argument.required else f"[{name}]" for argument, name in names)))


def _two_columns(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [
        line
        for left, right in rows
        for line in wrap_hanging(f"  {left.ljust(max(width, 14))}  ", right, _WIDTH)
    ]
