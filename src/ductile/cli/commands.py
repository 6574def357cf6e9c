"""The table of commands. It is data: help, parsing, completion and the reference are made from it.

Nothing is imported that a command needs to run; a row names the function as text, and `main` imports it.
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


class Action(NamedTuple):
    """Something that can be done. `run` is `module:function` inside this package."""

    name: str
    summary: str
    run: str
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    about: str = ""


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


CONFIG = Option(("--config",), "configuration file, or the directory that holds config.yaml", "PATH")
JSON = Option(("--json",), "answer in JSON, errors too")
VERBOSE = Option(("-v", "--verbose"), "tell more; for an unexpected fault, show the traceback")
HELP = Option(("-h", "--help"), "show this help")
VERSION = Option(("--version",), "show the version")
#: Accepted by every command, before the noun, before the action and after it.
EVERYWHERE = (CONFIG, JSON, VERBOSE, HELP)
DRY_RUN = Option(("--dry-run",), "show what would be done, and do nothing")

NOUNS = (
    Noun(
        "config",
        "check, seal, read and change the configuration",
        (
            Action(
                "check",
                "report everything that is wrong with the configuration",
                "config:check",
                about="Reads what the daemon would read, verifies the seal and looks at every plugin. "
                "Exit status 78 when something has to be corrected before all of it can run.",
            ),
            Action(
                "lock",
                "seal the configuration: authorise the files as they are now",
                "config:lock",
                options=(DRY_RUN,),
                about="Writes the hashes of all files that were loaded to .checksums. A file with tokens, "
                "webhooks or API access that differs from its hash keeps the daemon from starting.",
            ),
            Action(
                "show",
                "show the effective configuration, without secrets",
                "config:show",
                arguments=(Argument("SECTION", "only this part, for example plugins.echo", required=False),),
            ),
            Action(
                "get",
                "show one setting",
                "config:get",
                arguments=(Argument("KEY", "where it is, for example service.log_level"),),
            ),
            Action(
                "set",
                "change one setting in its file, keeping comments and order",
                "config:change",
                arguments=(
                    Argument("KEY", "where it is, for example service.log_level"),
                    Argument("VALUE", "the new value, read as YAML"),
                ),
                options=(
                    DRY_RUN,
                    Option(("--lock",), "renew the seal of the changed file, if it was intact"),
                ),
                about="The result is checked before it is written. Without --lock the seal is not renewed: "
                "run `ductile config lock` when the change is what you want.",
            ),
            Action("schema", "print the JSON Schema of the configuration", "config:schema"),
            Action(
                "init",
                "write a working, sealed starter configuration",
                "starter:init",
                arguments=(Argument("DIR", "directory to create"),),
                options=(DRY_RUN,),
                about="With an example plugin, pipeline, schedule and token. Overwrites nothing.",
            ),
        ),
    ),
    Noun(
        "plugin",
        "see which plugins there are, and whether they can run",
        (
            Action("list", "list the plugins: active, disabled, refused, available", "plugin:list_all"),
            Action(
                "show",
                "show one plugin: its commands, configuration keys and state of trust",
                "plugin:show",
                arguments=(Argument("NAME", "name of the plugin, or of a configured instance"),),
            ),
            Action(
                "check",
                "check manifests, files and required configuration",
                "plugin:check",
                arguments=(
                    Argument(
                        "NAME|DIR", "one plugin by name, or a directory outside the roots", required=False
                    ),
                ),
            ),
        ),
    ),
)

VERSION_ACTION = Action("version", "show the version", "version:show")

SHORT_FORMS = (
    ShortForm("init", "config", "init", "write a working, sealed starter configuration"),
    ShortForm("plugins", "plugin", "list", "list the plugins"),
)


def find_noun(name: str) -> Noun | None:
    return next((noun for noun in NOUNS if noun.name == name), None)


def find_short_form(name: str) -> ShortForm | None:
    return next((form for form in SHORT_FORMS if form.name == name), None)


def first_words() -> tuple[str, ...]:
    """Everything that may stand first."""
    return (*(noun.name for noun in NOUNS), *(form.name for form in SHORT_FORMS), VERSION_ACTION.name)
