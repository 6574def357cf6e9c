"""Types of the command table: nouns, actions, arguments and options, and the options of every command.

Imports nothing that a command needs to run: help is rendered from these values and has to start quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ductile.cli.client import Document
    from ductile.cli.console.console import Console
    from ductile.cli.invocation import CommandResult, Invocation

    CommandHandler: TypeAlias = Callable[[Invocation], CommandResult]
    ResponseRenderer: TypeAlias = Callable[[Document, Console], str]


class Argument(NamedTuple):
    """A positional argument."""

    name: str
    #: Empty for the help of the request's field.
    help: str = ""
    required: bool = True
    #: The field of the operation's request that it fills, if any.
    field: str | None = None
    #: Whether it takes all further words. Only the last argument may.
    variadic: bool = False
    #: Whether it takes all words from the first one that is no option, or from `--`.
    trailing: bool = False


class Option(NamedTuple):
    """An option. `usage` is how help shows it: `-n, --limit NUMBER`. Without a metavar it is a switch."""

    usage: str
    help: str
    #: The field of the operation's request that it fills, if any.
    field: str | None = None
    #: How its text is read: `text`, `integer`, `instant` (`2h`, `yesterday`: in the local time zone), `json`
    #: (an object, @FILE or -) or `list` (with commas).
    type: str = "text"
    #: Whether it may be given several times. Options that are made from a request never may.
    repeatable: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(self.usage.partition(self.metavar or "\0")[0].replace(",", "").split())

    @property
    def metavar(self) -> str | None:
        last = self.usage.split()[-1]
        return None if last.startswith("-") else last

    @property
    def destination(self) -> str:
        return self.flags[-1].lstrip("-").replace("-", "_")


class Example(NamedTuple):
    """A command line that can be typed, and its purpose."""

    line: str
    purpose: str


class Action(NamedTuple):
    """One command, such as `job list`."""

    name: str
    summary: str
    run: CommandHandler
    #: The operation whose request its arguments and options fill, if they fill one.
    operation: str = ""
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    #: Further sentences of the help, after the summary.
    about: str = ""
    examples: tuple[Example, ...] = ()
    #: Why the command works only on the machine of the daemon; empty if it works with --url.
    local_reason: str = ""


class ShortForm(NamedTuple):
    """A word that stands for a noun and an action."""

    name: str
    noun: str
    action: str
    summary: str


CONFIG = Option("--config PATH", "configuration file, or the directory of config.yaml")
URL = Option("--url URL", "the daemon on another machine, such as https://ductile.example.org")
TOKEN_ENV = Option("--token-env NAME", "with --url: the variable that holds the token (DUCTILE_TOKEN)")
CA = Option("--ca FILE", "with --url: trust only the authorities in this file, in PEM format")
#: They name the daemon: one of this machine, or one at a URL.
DAEMON_OPTIONS = (CONFIG, URL, TOKEN_ENV, CA)
JSON = Option("--json", "answer in JSON, errors too")
VERBOSE = Option("-v, --verbose", "show more; for an unexpected error, the traceback")
HELP = Option("-h, --help", "show this help")
VERSION = Option("--version", "show the version")
#: Accepted by every command, before the noun, before the action and after it.
GLOBAL_OPTIONS = (*DAEMON_OPTIONS, JSON, VERBOSE, HELP)

# Why commands work only on the machine of the daemon (see `Action.local_reason`).
#: A command with this reason ignores DUCTILE_URL.
NO_DAEMON = "it is about files of this machine and needs no daemon"
CONFIG_FILES = "it reads or changes the files of the configuration, which are sealed on their machine"
PLUGIN_FILES = "it works with the files of plugins, which are on the machine of the daemon"
DAEMON_PROCESS = "it starts or ends the process of the daemon, which is done on its machine"

# Arguments and options that several commands share.
DRY_RUN = Option("--dry-run", "show what would be done, and do nothing", "dry_run")
TIMEOUT = Option("--timeout DURATION", "wait no longer than this, such as 30s; without a daemon, end it then")
RETRY = Option(
    "--retry", "retry it as its configuration says; without it, it is tried once, unless --no-wait"
)
FOLLOW_OUTPUT = Option(
    "--follow", "show on standard error what it prints while it runs; a terminal shows it anyway"
)
#: How the filters that `job list` and `system logs` share are written; None for no option.
FILTER_USAGE = {
    "submitted_by": "--by SOURCE",
    "since": "--from, --since TIME",
    "until": "--to, --until TIME",
    "from": None,
    "to": None,
}
JOB = Argument("JOB", field="job_id")
PLUGIN = Argument("PLUGIN", field="plugin")
OPTIONAL_PLUGIN = PLUGIN._replace(required=False)
SCHEDULE = Argument("SCHEDULE", required=False, field="schedule")


def action(
    name: str,
    summary: str,
    operation: str = "",
    *,
    arguments: tuple[Argument, ...] = (),
    options: tuple[Option, ...] = (),
    usage: Mapping[str, str | None] = MappingProxyType({}),
    about: str = "",
    examples: tuple[Example, ...] = (),
    local_reason: str = "",
) -> Callable[[CommandHandler], Action]:
    """Declare the decorated function as a command of its module's noun.

    `local_reason` says why the command does not work with --url.
    The fields of the operation's request become options of the command, unless an argument or another option
    fills them. `usage` maps such a field to another `Option.usage`, or to None for no option.
    """

    def declare(run: CommandHandler) -> Action:
        from ductile.cli.operation_options import OPTIONS

        options_by_field = {str(option.field): option for option in OPTIONS.get(operation, ())}
        arguments_with_help = [
            argument
            if argument.help or not options_by_field
            else argument._replace(help=options_by_field[str(argument.field)].help)
            for argument in arguments
        ]
        filled_fields = {argument.field for argument in arguments} | {option.field for option in options}
        options_of_fields = [
            option._replace(usage=usage.get(field) or option.usage)
            for field, option in options_by_field.items()
            if field not in filled_fields and usage.get(field, option.usage) is not None
        ]
        return Action(
            name,
            summary,
            run,
            operation,
            tuple(arguments_with_help),
            (*options, *options_of_fields),
            about,
            examples,
            local_reason,
        )

    return declare


def renders(name: str, summary: str, operation: str, **keywords: Any) -> Callable[[ResponseRenderer], Action]:
    """Declare a command that runs an operation; the decorated function renders its response for people.

    `keywords` are those of `action`.
    """

    def declare(render: ResponseRenderer) -> Action:
        def run(invocation: Invocation) -> CommandResult:
            from ductile.cli.client import request
            from ductile.cli.invocation import CommandResult

            response = request(invocation)
            return CommandResult(response, lambda console: render(response, console))

        return action(name, summary, operation, **keywords)(run)

    return declare
