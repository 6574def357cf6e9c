"""`ductile plugin disable` and `ductile plugin enable`: edit, seal and reload in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.admin.config import SettingChange, change_setting
from ductile.admin.plugins import configured_or_available
from ductile.cli.client import (
    DAEMON_TIMEOUT,
    Document,
    connect_to_daemon,
    request_daemon,
    request_if_available,
)
from ductile.cli.config import change_text
from ductile.cli.console.format import format_count
from ductile.cli.console.progress import show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.system import reload_text
from ductile.errors import DuctileError

if TYPE_CHECKING:
    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject

_NOTHING_TO_DRAIN = "Only a daemon can run its jobs: start it, or leave out --drain."


def disable(call: Invocation) -> CommandResult:
    """With --drain nothing is written before the plugin has run dry."""
    name = configured_or_available(call.config, call.environ, call.text("NAME"), configured=True)
    planned = _change(call, name, "false", dry_run=True)
    if call.switch("dry_run"):
        return _planned(planned, request_if_available(call, "plugin.pending", {"plugin": name}))
    runs = _may_reload(call)
    limit = call.optional("timeout")
    if call.switch("drain"):
        with show_waiting(call, f"{name} to finish its accepted jobs"):
            request_daemon(
                call,
                "plugin.drain",
                {"plugin": name, "drain_timeout": limit},
                timeout=None,
                advice=_NOTHING_TO_DRAIN,
            )
    done = _change(call, name, "false", dry_run=False)
    return _applied(call, done, runs=runs, drain=call.switch("drain"), limit=limit)


def enable(call: Invocation) -> CommandResult:
    name = configured_or_available(call.config, call.environ, call.text("NAME"), configured=False)
    planned = _change(call, name, "true", dry_run=True)
    if call.switch("dry_run"):
        return CommandResult(
            data=_data(planned) | {"dry_run": True}, text=lambda screen: change_text(planned, screen)
        )
    runs = _may_reload(call)
    return _applied(call, _change(call, name, "true", dry_run=False), runs=runs)


def _change(call: Invocation, plugin: str, value: str, *, dry_run: bool) -> SettingChange:
    key = f"plugins.{plugin}.enabled"
    return change_setting(call.config, call.environ, key, value, dry_run=dry_run, lock=True)


def _may_reload(call: Invocation) -> bool:
    """Whether a daemon runs. What it would refuse for other reasons is refused before anything is written."""
    connection = connect_to_daemon(call)
    if connection is None:
        return False
    connection.close()
    request_daemon(call, "system.reload", {"dry_run": True})
    return True


def _applied(
    call: Invocation, done: SettingChange, *, runs: bool, drain: bool = False, limit: str | None = None
) -> CommandResult:
    reloaded: Document | None = None
    if runs:
        given = {"drain": drain, "drain_timeout": limit}
        try:
            reloaded = request_daemon(call, "system.reload", given, timeout=None if drain else DAEMON_TIMEOUT)
        except DuctileError as error:
            written = "was written" if done.written else "is in the file already"
            error.message = f"the change {written}, but the daemon did not load it: {error.message}"
            raise
    data = _data(done) | {"reloaded": reloaded}

    def text(screen: Console) -> str:
        then = "No daemon is running; it counts from the next start."
        return f"{change_text(done, screen)}\n{then if reloaded is None else reload_text(reloaded, screen)}"

    return CommandResult(data=data, text=text)


def _planned(planned: SettingChange, pending: Document | None) -> CommandResult:
    def text(screen: Console) -> str:
        told = change_text(planned, screen)
        return told if pending is None else f"{told}\n{screen.advice(_pending_text(pending))}"

    return CommandResult(data=_data(planned) | {"pending": pending, "dry_run": True}, text=text)


def _pending_text(pending: Document) -> str:
    name = pending["plugin"]
    parts = []
    if pending["queued"]:
        parts.append(f"{format_count(pending['queued'], 'queued job')} would end as dead (plugin_removed)")
    if pending["runs"]:
        parts.append(f"{format_count(pending['runs'], 'pipeline run')} still to end would miss it")
    if not parts:
        return f"No queued job of {name} would end."
    return f"{'; '.join(parts)}. To run them first: `ductile plugin disable {name} --drain`"


def _data(done: SettingChange) -> JsonObject:
    return {
        "key": done.key,
        "file": str(done.path),
        "diff": done.diff,
        "written": done.written,
        "sealed": done.sealed,
    }
