"""`ductile plugin disable` and `ductile plugin enable`: edit, seal and reload in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import (
    DAEMON_TIMEOUT,
    Document,
    request_daemon,
    request_if_available,
)
from ductile.cli.commands.config.files import change_as_json, change_text
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.admin.config import SettingChange

_NAME = Argument("NAME", "name of the plugin, as it is configured")


@action(
    "disable",
    "disable a plugin: edit the configuration, seal it and reload",
    arguments=(_NAME,),
    options=(
        Option("--drain", "let it finish its accepted work first; needs the daemon"),
        Option(
            "--timeout DURATION",
            "give up a drain that takes longer (default 1h), and change nothing",
            "drain_timeout",
        ),
        DRY_RUN,
    ),
    about="Sets plugins.NAME.enabled to false as `config set --lock` does, then reloads the daemon if "
    "one runs. Its queued jobs end as dead (plugin_removed). With --drain the plugin first takes no new "
    "jobs and is not scheduled; its accepted jobs, and the pipeline runs that use it, run to their end. "
    "Nothing is written before that: Ctrl-C, a timeout or a crash leaves the plugin enabled.",
    examples=(
        Example("ductile plugin disable echo --dry-run", "which of its jobs would end?"),
        Example("ductile plugin disable echo --drain --timeout 10m", "run them first"),
    ),
    local_reason=CONFIG_FILES,
)
def disable(invocation: Invocation) -> CommandResult:
    from ductile.admin.plugins import find_name_to_switch

    name = find_name_to_switch(
        invocation.config, invocation.environ, invocation.text("NAME"), must_be_configured=True
    )
    planned = _change_enabled(invocation, name, "false", dry_run=True)
    if invocation.switch("dry_run"):
        pending = request_if_available(invocation, "plugin.pending", {"plugin": name})

        def text(console: Console) -> str:
            change = change_text(planned, console)
            if pending is None:
                return change
            parts = []
            if pending["queued"]:
                jobs = fmt.count(pending["queued"], "queued job")
                parts.append(f"{jobs} would end as dead (plugin_removed)")
            if pending["runs"]:
                parts.append(f"{fmt.count(pending['runs'], 'pipeline run')} still to end would miss it")
            hint = f"{'; '.join(parts)}. To run them first: `ductile plugin disable {name} --drain`"
            return f"{change}\n{console.hint(hint if parts else f'No queued job of {name} would end.')}"

        return CommandResult(change_as_json(planned) | {"pending": pending}, text)
    return _switch(invocation, name, "false")


@action(
    "enable",
    "enable a plugin: edit the configuration, seal it and reload",
    arguments=(_NAME,),
    options=(DRY_RUN,),
    about="Sets plugins.NAME.enabled to true as `config set --lock` does, then reloads the daemon if one "
    "runs. An installed plugin that the configuration does not name yet is added to it.",
    local_reason=CONFIG_FILES,
)
def enable(invocation: Invocation) -> CommandResult:
    from ductile.admin.plugins import find_name_to_switch

    name = find_name_to_switch(
        invocation.config, invocation.environ, invocation.text("NAME"), must_be_configured=False
    )
    planned = _change_enabled(invocation, name, "true", dry_run=True)
    if invocation.switch("dry_run"):
        return CommandResult(change_as_json(planned), lambda console: change_text(planned, console))
    return _switch(invocation, name, "true")


def _change_enabled(invocation: Invocation, plugin: str, value: str, *, dry_run: bool) -> SettingChange:
    from ductile.admin.config import change_setting

    key = f"plugins.{plugin}.enabled"
    return change_setting(invocation.config, invocation.environ, key, value, dry_run=dry_run, lock=True)


def _switch(invocation: Invocation, name: str, value: str) -> CommandResult:
    """Change the setting and reload the daemon if one runs; with --drain, after its accepted jobs."""
    from ductile.cli.commands.system.daemon import can_reload_daemon, reload_text
    from ductile.cli.console.console import show_waiting
    from ductile.errors import DuctileError

    drain, limit = invocation.switch("drain"), invocation.optional("timeout")
    has_daemon = can_reload_daemon(invocation)
    if drain:
        advice = "Only a daemon can run its jobs: start it, or leave out --drain."
        fields = {"plugin": name, "drain_timeout": limit}
        with show_waiting(invocation, f"{name} to finish its accepted jobs"):
            request_daemon(invocation, "plugin.drain", fields, timeout=None, advice=advice)
    change = _change_enabled(invocation, name, value, dry_run=False)
    reloaded: Document | None = None
    if has_daemon:
        reload_fields, timeout = {"drain": drain, "drain_timeout": limit}, None if drain else DAEMON_TIMEOUT
        try:
            reloaded = request_daemon(invocation, "system.reload", reload_fields, timeout=timeout)
        except DuctileError as error:
            outcome = "was written" if change.written else "is in the file already"
            error.message = f"the change {outcome}, but the daemon did not load it: {error.message}"
            raise

    def text(console: Console) -> str:
        no_daemon = "No daemon is running; the next start uses the change."
        effect = no_daemon if reloaded is None else reload_text(reloaded, console)
        return f"{change_text(change, console)}\n{effect}"

    return CommandResult(change_as_json(change) | {"reloaded": reloaded}, text)
