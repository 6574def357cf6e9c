"""The plugin that a list is narrowed to: one that exists or has existed, or a word about the typing error."""

from __future__ import annotations

from ductile.config.key_paths import did_you_mean
from ductile.config.snapshot import Snapshot
from ductile.core.json import JsonObject
from ductile.errors import NotFoundError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.store.model.records import JobFilter, LogFilter

#: What is not a plugin and has jobs all the same: the runs of pipelines.
_RUNS = "pipeline"


async def known_plugin_filter(context: OperationContext, given: JsonObject) -> str | None:
    """Raises `NotFoundError` for a name that nobody knows: an empty list would say that nothing ran."""
    plugin = read.optional_text(given, "plugin")
    if plugin is not None and not await _is_known(context, plugin):
        raise unknown_plugin(context.snapshot(), plugin)
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


async def _is_known(context: OperationContext, plugin: str) -> bool:
    """Configured, or no longer: what it did is still there to be asked for."""
    if plugin in context.snapshot().plugins or plugin == _RUNS:
        return True
    store = context.store
    return bool(
        (await store.jobs(JobFilter(plugin=plugin), limit=1)).rows
        or (await store.log(LogFilter(plugin=plugin), limit=1)).rows
    )
