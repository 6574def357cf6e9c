"""The table of commands. It is data: help, parsing, completion and the reference are made from it.

Nothing is imported that a command needs to run; a row names the function as text, and `main` imports it.
"""

from __future__ import annotations

from ductile.cli.access_commands import TOKEN, WEBHOOK
from ductile.cli.engine_commands import JOB, PLUGIN_RUN, QUEUE, SCHEDULE, SYSTEM
from ductile.cli.pipeline_commands import EVENT, PIPELINE
from ductile.cli.plugin_commands import PLUGIN_AUTHORING
from ductile.cli.spec import (
    CONFIG,
    DRY_RUN,
    EVERYWHERE,
    HELP,
    JSON,
    VERBOSE,
    VERSION,
    Action,
    Argument,
    Example,
    Noun,
    Option,
    ShortForm,
)

__all__ = [
    "CONFIG",
    "EVERYWHERE",
    "HELP",
    "JSON",
    "NOUNS",
    "SHORT_FORMS",
    "VERBOSE",
    "VERSION",
    "VERSION_ACTION",
    "Action",
    "Argument",
    "Example",
    "Noun",
    "Option",
    "ShortForm",
    "find_noun",
    "find_short_form",
    "first_words",
]

NOUNS = (
    SYSTEM,
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
                    Argument("KEY", "where it is, such as service.log_level; routes[+] adds an entry"),
                    Argument("VALUE", "the new value, read as YAML"),
                ),
                options=(
                    DRY_RUN,
                    Option(("--lock",), "renew the seal of the changed file, if it was intact"),
                ),
                about="The result is checked before it is written, and refused if other files would keep it "
                "from having an effect. An entry of a list is changed in the file that has it. Without "
                "--lock the seal is not renewed: run `ductile config lock` when the change is what you want.",
                examples=(
                    Example(
                        "ductile config set service.log_level debug --lock",
                        "and seal it; `ductile reload` applies it",
                    ),
                    Example(
                        "ductile config set plugins.echo.enabled false --dry-run", "what would be changed?"
                    ),
                    Example(
                        "ductile config set 'artifacts.roots[+]' ./out --lock", "one more entry in a list"
                    ),
                ),
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
        "run, inspect, write and test plugins",
        (
            PLUGIN_RUN,
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
            *PLUGIN_AUTHORING,
        ),
    ),
    PIPELINE,
    JOB,
    QUEUE,
    SCHEDULE,
    EVENT,
    WEBHOOK,
    TOKEN,
)

VERSION_ACTION = Action("version", "show the version", "version:show")

SHORT_FORMS = (
    ShortForm("run", "plugin", "run", "run a plugin and show its result"),
    ShortForm("start", "system", "start", "run the daemon in the foreground"),
    ShortForm("stop", "system", "stop", "stop the daemon cleanly and wait until it has stopped"),
    ShortForm("status", "system", "status", "show the daemon, the queue and every plugin"),
    ShortForm("watch", "system", "watch", "watch what runs, waits and happens in the terminal"),
    ShortForm("doctor", "system", "doctor", "look for what is wrong, and say how to put it right"),
    ShortForm("explain", "job", "explain", "say why a job failed, or why it does not run"),
    ShortForm("retry", "job", "retry", "run a job that ended badly once more"),
    ShortForm("logs", "system", "logs", "show what ran, from the ledger"),
    ShortForm("queue", "queue", "list", "list running and waiting jobs"),
    ShortForm("reload", "system", "reload", "apply the changed configuration"),
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
