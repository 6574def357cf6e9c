"""Names of plugins in requests: refused if they are unknown, with the name that may be meant."""

from __future__ import annotations

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError
from ductile.operations.context import OperationContext
from ductile.store.model.records import JobFilter, LogFilter


async def refuse_unknown_plugin(context: OperationContext, plugin: str | None) -> None:
    """Raise `NotFoundError` for a plugin that is not configured and has no past jobs.

    An empty list would read as if it had run nothing.
    """
    if plugin is None or plugin == RUN_PLUGIN or plugin in context.snapshot().plugins:
        return
    jobs = await context.store.jobs(JobFilter(plugin=plugin), limit=1)
    if not jobs.rows and not (await context.store.log(LogFilter(plugin=plugin), limit=1)).rows:
        raise unknown_plugin(context.snapshot(), plugin)


def find_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    """The plugin configured under this name. Raises `NotFoundError`."""
    plugin = snapshot.plugins.get(name)
    if plugin is None:
        raise unknown_plugin(snapshot, name)
    return plugin


def unknown_plugin(snapshot: Snapshot, name: str) -> NotFoundError:
    """The error for a name that is not under `plugins`, with the names that may be meant."""
    if instances := [each for each, plugin in snapshot.plugins.items() if plugin.uses == name]:
        return NotFoundError(
            f"there is no plugin {name} under `plugins`; it is used under other names",
            hint=f"Name one of {', '.join(instances)}.",
        )
    near = did_you_mean(name, snapshot.plugins)
    return NotFoundError(f"there is no plugin {name}", hint=near or "See `ductile plugin list`.")
