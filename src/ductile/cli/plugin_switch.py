"""`ductile plugin disable` and `ductile plugin enable`: edit, seal and reload in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.answers import Answer, Call
from ductile.cli.config import change_text
from ductile.cli.daemon import PATIENCE, Said, ask_daemon, ask_if_there, find_daemon
from ductile.cli.progress import waiting_for
from ductile.cli.system import reload_text
from ductile.cli.wording import count
from ductile.errors import DuctileError
from ductile.operations.configuration import Change, change_setting
from ductile.operations.plugins import configured_or_available

if TYPE_CHECKING:
    from ductile.cli.screen import Screen
    from ductile.core.json_values import JsonObject

_NOTHING_TO_DRAIN = "Only a daemon can run its jobs: start it, or leave out --drain."


def disable(call: Call) -> Answer:
    """With --drain nothing is written before the plugin has run dry."""
    name = configured_or_available(call.config, call.environ, call.text("NAME"), configured=True)
    planned = _change(call, name, "false", dry_run=True)
    if call.switch("dry_run"):
        return _planned(planned, ask_if_there(call, "plugin.pending", {"plugin": name}))
    runs = _may_reload(call)
    limit = call.optional("timeout")
    if call.switch("drain"):
        with waiting_for(call, f"{name} to finish its accepted jobs"):
            ask_daemon(
                call,
                "plugin.drain",
                {"plugin": name, "drain_timeout": limit},
                timeout=None,
                advice=_NOTHING_TO_DRAIN,
            )
    done = _change(call, name, "false", dry_run=False)
    return _applied(call, done, runs=runs, drain=call.switch("drain"), limit=limit)


def enable(call: Call) -> Answer:
    name = configured_or_available(call.config, call.environ, call.text("NAME"), configured=False)
    planned = _change(call, name, "true", dry_run=True)
    if call.switch("dry_run"):
        return Answer(
            data=_data(planned) | {"dry_run": True}, text=lambda screen: change_text(planned, screen)
        )
    runs = _may_reload(call)
    return _applied(call, _change(call, name, "true", dry_run=False), runs=runs)


def _change(call: Call, plugin: str, value: str, *, dry_run: bool) -> Change:
    key = f"plugins.{plugin}.enabled"
    return change_setting(call.config, call.environ, key, value, dry_run=dry_run, lock=True)


def _may_reload(call: Call) -> bool:
    """Whether a daemon runs. What it would refuse for other reasons is refused before anything is written."""
    connection = find_daemon(call)
    if connection is None:
        return False
    connection.close()
    ask_daemon(call, "system.reload", {"dry_run": True})
    return True


def _applied(
    call: Call, done: Change, *, runs: bool, drain: bool = False, limit: str | None = None
) -> Answer:
    reloaded: Said | None = None
    if runs:
        given = {"drain": drain, "drain_timeout": limit}
        try:
            reloaded = ask_daemon(call, "system.reload", given, timeout=None if drain else PATIENCE)
        except DuctileError as error:
            written = "was written" if done.written else "is in the file already"
            error.message = f"the change {written}, but the daemon did not load it: {error.message}"
            raise
    data = _data(done) | {"reloaded": reloaded}

    def text(screen: Screen) -> str:
        then = "No daemon is running; it counts from the next start."
        return f"{change_text(done, screen)}\n{then if reloaded is None else reload_text(reloaded, screen)}"

    return Answer(data=data, text=text)


def _planned(planned: Change, pending: Said | None) -> Answer:
    def text(screen: Screen) -> str:
        told = change_text(planned, screen)
        return told if pending is None else f"{told}\n{screen.advice(_pending_text(pending))}"

    return Answer(data=_data(planned) | {"pending": pending, "dry_run": True}, text=text)


def _pending_text(pending: Said) -> str:
    name = pending["plugin"]
    parts = []
    if pending["queued"]:
        parts.append(f"{count(pending['queued'], 'queued job')} would end as dead (plugin_removed)")
    if pending["runs"]:
        parts.append(f"{count(pending['runs'], 'pipeline run')} still to end would miss it")
    if not parts:
        return f"No queued job of {name} would end."
    return f"{'; '.join(parts)}. To run them first: `ductile plugin disable {name} --drain`"


def _data(done: Change) -> JsonObject:
    return {
        "key": done.key,
        "file": str(done.path),
        "diff": done.diff,
        "written": done.written,
        "sealed": done.sealed,
    }
