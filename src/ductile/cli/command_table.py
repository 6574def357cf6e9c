"""The table of commands: every noun, the modules that declare its actions, and the short forms.

Only names and summaries are here. An action is declared beside the function that runs it, in
`ductile.cli.commands`, and loading one action imports that module alone.
"""

from __future__ import annotations

from typing import NamedTuple

from ductile.cli.spec import Action, ShortForm


class Noun(NamedTuple):
    """The first word of a command. `action_list` has its actions in the order of its help, each with
    its module (`logs:monitor`) if the noun is a package.
    """

    name: str
    summary: str
    action_list: str

    @property
    def modules(self) -> dict[str, str]:
        """Return the module that declares each action, by the name of the action."""
        pairs = (pair.partition(":") for pair in self.action_list.split())
        return {action: f"{self.name}.{module}" if module else self.name for action, _, module in pairs}

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return every action. Imports all modules of the noun."""
        return tuple(load_action(module, name) for name, module in self.modules.items())

    def action(self, name: str) -> Action | None:
        module = self.modules.get(name)
        return None if module is None else load_action(module, name)


def load_action(module: str, name: str) -> Action:
    from importlib import import_module

    declared = vars(import_module(f"ductile.cli.commands.{module}")).values()
    return next(item for item in declared if isinstance(item, Action) and item.name == name)


NOUNS = (
    Noun(
        "system",
        "start, stop and watch over the daemon",
        "start:daemon stop:daemon status:daemon reload:daemon reset:daemon breaker:daemon logs:monitor "
        "doctor:doctor digest:digest selfcheck:doctor sweep:doctor backup:backup restore:backup "
        "move-store:move_store watch:monitor unit:setup completion:setup",
    ),
    Noun(
        "config",
        "check, seal, read and change the configuration",
        "check:files apply:apply rollback:apply history:history diff:history lock:files show:files "
        "get:files set:files unset:files edit:edit schema:files init:files",
    ),
    Noun(
        "plugin",
        "run, inspect, write and test plugins",
        "run:run exec:execute list:inspect show:inspect add:install update:install remove:install "
        "stats:inspect check:inspect test:develop replay:replay new:develop disable:switch enable:switch "
        "lock:inspect state:inspect facts:inspect authorize:authorize",
    ),
    Noun(
        "pipeline",
        "see, run, check, test, draw and explain pipelines",
        "list:inspect show:inspect run:inspect check:inspect test:case_runs graph:inspect explain:inspect",
    ),
    Noun(
        "job",
        "find, inspect, wait for, cancel, retry, rerun and export jobs",
        "list:inspect show:inspect explain:inspect tree:inspect logs:inspect wait:inspect cancel:change "
        "retry:change rerun:change export:export",
    ),
    Noun("queue", "see what is running and waiting; empty the queue", "status list purge"),
    Noun("schedule", "see, pause and run what is scheduled", "list next history explain pause resume run"),
    Noun("event", "publish and explain events, and follow what happens", "send explain tail"),
    Noun("webhook", "see and test incoming webhooks, follow outgoing ones", "list send deliveries resend"),
    Noun(
        "token",
        "create, list, rotate and revoke API tokens and shared secrets",
        "create list show rotate revoke",
    ),
    Noun("ui", "open the dashboard", "open"),
    Noun("mcp", "let agents operate this daemon (Model Context Protocol)", "serve"),
    Noun("skill", "write a skill for agents that read files", "export"),
)

#: The only command without a noun.
VERSION_COMMAND = ShortForm("version", "", "version", "show the version")

SHORT_FORMS = (
    ShortForm("run", "plugin", "run", "run a plugin and show its result"),
    ShortForm("exec", "plugin", "exec", "run any command once as a job"),
    ShortForm("start", "system", "start", "run the daemon in the foreground"),
    ShortForm("stop", "system", "stop", "stop the daemon cleanly and wait until it has stopped"),
    ShortForm("status", "system", "status", "show the daemon, the queue and every plugin"),
    ShortForm("watch", "system", "watch", "watch what runs, waits and happens in the terminal"),
    ShortForm("doctor", "system", "doctor", "look for what is wrong, and say how to fix it"),
    ShortForm("explain", "job", "explain", "say why a job failed, or why it does not run"),
    ShortForm("retry", "job", "retry", "run a job again that failed"),
    ShortForm("logs", "system", "logs", "list executions, from the job log"),
    ShortForm("queue", "queue", "list", "list running and waiting jobs"),
    ShortForm(
        "apply", "config", "apply", "put the configuration on disk in force: check, show, seal, reload"
    ),
    ShortForm("reload", "system", "reload", "apply the changed configuration"),
    ShortForm("init", "config", "init", "write a working, sealed starter configuration"),
    ShortForm("plugins", "plugin", "list", "list the plugins"),
)


def find_noun(name: str) -> Noun | None:
    return next((noun for noun in NOUNS if noun.name == name), None)


def find_short_form(name: str) -> ShortForm | None:
    return next((form for form in SHORT_FORMS if form.name == name), None)


def first_words() -> tuple[str, ...]:
    """Return every word that may come first."""
    return (*(noun.name for noun in NOUNS), *(form.name for form in SHORT_FORMS), VERSION_COMMAND.name)
