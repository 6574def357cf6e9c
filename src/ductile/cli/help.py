"""Help, rendered from the table of commands."""

from __future__ import annotations

from ductile.cli.command_table import NOUNS, SHORT_FORMS, VERSION_COMMAND, Noun
from ductile.cli.console.table import wrap, wrap_hanging
from ductile.cli.spec import GLOBAL_OPTIONS, VERSION, Action

#: The same on every terminal, so that all users see the same text.
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
            *_pairs([(VERSION_COMMAND.name, VERSION_COMMAND.summary)]),
            "",
            "Options, before or after the action:",
            *_pairs([(option.usage, option.help) for option in (*GLOBAL_OPTIONS, VERSION)]),
            "",
            "`ductile NOUN --help` lists a noun's actions. Start with `ductile init DIR`.",
        )
    )


def noun_help(noun: Noun) -> str:
    """`ductile config --help`"""
    return "\n".join(
        (
            f"Usage: ductile {noun.name} ACTION [ARGUMENTS] [OPTIONS]",
            "",
            f"{noun.name}: {noun.summary}.",
            "",
            "Actions:",
            *_pairs([(signature(action.name, action), action.summary) for action in noun.actions]),
            "",
            f"`ductile {noun.name} ACTION --help` shows more.",
        )
    )


def action_help(words: str, action: Action) -> str:
    """`ductile config set --help`; `words` is how it was called."""
    about = ("", *wrap(action.about, _WIDTH)) if action.about else ()
    arguments = [(argument.name, argument.help) for argument in action.arguments]
    options = [(option.usage, option.help) for option in (*action.options, *GLOBAL_OPTIONS)]
    # Each with its purpose as a comment, so that all of it can be copied into a shell.
    examples = [f"  {line}" for example in action.examples for line in (f"# {example.does}", example.line)]
    return "\n".join(
        (
            f"Usage: ductile {signature(words, action)} [OPTIONS]",
            "",
            *wrap(f"{action.summary[0].upper()}{action.summary[1:]}.", _WIDTH),
            *about,
            *(("", "Arguments:", *_pairs(arguments)) if arguments else ()),
            "",
            "Options:",
            *_pairs(options),
            *(("", "Examples:", *examples) if examples else ()),
        )
    )


def signature(words: str, action: Action) -> str:
    """`words`, which name the action, and its arguments."""
    names = (
        (argument, f"{argument.name}…" if argument.many else argument.name) for argument in action.arguments
    )
    return " ".join((words, *(name if argument.required else f"[{name}]" for argument, name in names)))


def _pairs(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [
        line
        for left, right in rows
        for line in wrap_hanging(f"  {left.ljust(max(width, 14))}  ", right, _WIDTH)
    ]
