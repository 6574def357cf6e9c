"""Finding plugins and commands by name. Errors suggest the name that may be meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.scripts import EXEC_PLUGIN
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError, RefusedError
from ductile.operations.context import OperationContext
from ductile.plugins.shipped import shipped_names
from ductile.protocol.manifest.model import Command
from ductile.store.model.records import JobFilter, LogFilter
from ductile.struct import Value, about


class OnePlugin(Value):
    """A request about one plugin."""

    plugin: Annotated[str, about("Name of the plugin, as it is configured.")]


async def refuse_unknown_plugin(context: OperationContext, plugin: str | None) -> None:
    """Raise `NotFoundError` for a plugin that is not configured and has no past jobs.

    The empty list of an unknown plugin would look as if the plugin had run nothing.
    """
    if plugin is None or plugin in (RUN_PLUGIN, EXEC_PLUGIN) or plugin in context.snapshot().plugins:
        return
    jobs = await context.store.list_jobs(JobFilter(plugin=plugin), limit=1)
    if not jobs.rows and not (await context.store.list_log(LogFilter(plugin=plugin), limit=1)).rows:
        raise unknown_plugin(context.snapshot(), plugin)


def find_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    """Return the plugin configured under this name. Raises `NotFoundError`."""
    plugin = snapshot.plugins.get(name)
    if plugin is None:
        raise unknown_plugin(snapshot, name)
    return plugin


def unknown_plugin(snapshot: Snapshot, name: str) -> NotFoundError:
    """Return the error for a name that is not under `plugins`, with the names that may be meant."""
    if instances := [instance for instance, plugin in snapshot.plugins.items() if plugin.uses == name]:
        return NotFoundError(
            f"there is no plugin {name} under `plugins`; it is used under other names",
            hint=f"Name one of {', '.join(instances)}.",
        )
    hint = did_you_mean(name, snapshot.plugins) or "See `ductile plugin list`."
    plugin, slash, schedule = name.partition("/")
    if slash and plugin in snapshot.plugins:  # messages name a schedule as PLUGIN/SCHEDULE
        hint = f"Write it as two words: {plugin} {schedule}"
    return NotFoundError(f"there is no plugin {name}", hint=hint)


def runnable_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    """Return the plugin of this name. Raises `NotFoundError`, or `RefusedError` if it cannot run."""
    plugin = snapshot.plugins.get(name)
    if plugin is None:
        if name in snapshot.available or name in shipped_names():
            raise NotFoundError(
                f"the plugin {name} is installed but not active",
                hint=f"Name it under `plugins`: `ductile config set plugins.{name}.enabled true`, "
                "then `ductile apply`.",
            )
        raise unknown_plugin(snapshot, name)
    if not plugin.enabled:
        raise RefusedError(f"the plugin {name} is disabled", hint=f"Enable it: ductile plugin enable {name}")
    if plugin.refused is not None:
        raise RefusedError(f"the plugin {name} cannot run: {plugin.refused.reason}", hint=plugin.refused.hint)
    return plugin


def default_command(plugin: PluginInstance, *, has_payload: bool) -> str:
    """Return the command that runs if none is named: one that takes the payload, if there is one."""
    commands = commands_of(plugin)
    if has_payload and "handle" in commands:
        return "handle"
    return "poll" if "poll" in commands else "handle"


def commands_of(plugin: PluginInstance) -> Mapping[str, Command]:
    """Return the commands of the plugin's manifest by name; none if the plugin cannot be loaded."""
    return plugin.installed.manifest.commands if plugin.installed else {}


def known_command(plugin: PluginInstance, command: str) -> str:
    """Return the name of the command. Raises `NotFoundError` if the plugin does not have it."""
    commands = commands_of(plugin)
    if command not in commands:
        near = did_you_mean(command, commands)
        has = f"It has {', '.join(commands)}." if commands else None
        hint = f"{near} {has}" if near and has else has
        raise NotFoundError(f"{plugin.name} has no command {command}", hint=hint)
    return command
