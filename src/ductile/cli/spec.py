"""What the table of commands is made of: nouns, actions, arguments, options, and those every command has.

Nothing is imported that a command needs to run: help is made from these and has to be quick.
"""

from __future__ import annotations

from typing import NamedTuple


class Argument(NamedTuple):
    """A positional argument."""

    name: str
    help: str
    required: bool = True


class Option(NamedTuple):
    """An option; one without `metavar` is a switch."""

    flags: tuple[str, ...]
    help: str
    metavar: str | None = None

    @property
    def destination(self) -> str:
        return self.flags[-1].lstrip("-").replace("-", "_")


class Example(NamedTuple):
    """A line as it can be typed, and what it is for."""

    line: str
    does: str


class Action(NamedTuple):
    """Something that can be done. `run` is `module:function` inside this package."""

    name: str
    summary: str
    run: str
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    about: str = ""
    examples: tuple[Example, ...] = ()


class Noun(NamedTuple):
    name: str
    summary: str
    actions: tuple[Action, ...]

    def action(self, name: str) -> Action | None:
        return next((action for action in self.actions if action.name == name), None)


class ShortForm(NamedTuple):
    """A word that stands for a noun and an action."""

    name: str
    noun: str
    action: str
    summary: str


CONFIG = Option(("--config",), "configuration file, or the directory of config.yaml", "PATH")
JSON = Option(("--json",), "answer in JSON, errors too")
VERBOSE = Option(("-v", "--verbose"), "tell more; for an unexpected fault, the traceback")
HELP = Option(("-h", "--help"), "show this help")
VERSION = Option(("--version",), "show the version")
#: Accepted by every command, before the noun, before the action and after it.
EVERYWHERE = (CONFIG, JSON, VERBOSE, HELP)
DRY_RUN = Option(("--dry-run",), "show what would be done, and do nothing")
