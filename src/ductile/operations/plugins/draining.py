"""Draining a plugin before it is disabled, and the work that still needs it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from ductile.operations.context import OperationContext
from ductile.operations.plugins.names import find_plugin
from ductile.operations.response import Response
from ductile.struct import Value

DEFAULT_DRAIN_TIMEOUT = timedelta(hours=1)


class ShowPendingWork(Value):
    plugin: Annotated[str, Meta(description="The plugin.")]


class PendingPluginWork(Response):
    """Accepted work that needs a plugin."""

    plugin: str
    queued: int
    running: int
    runs: Annotated[int, Meta(description="Pipeline runs with a step that uses it.")]


class DrainPlugin(Value):
    plugin: Annotated[str, Meta(description="The plugin.")]
    drain_timeout: Annotated[timedelta, Meta(description="How long to wait, such as 10m.")] = (
        DEFAULT_DRAIN_TIMEOUT
    )


class PluginDrained(Response):
    plugin: str
    drained: bool


async def pending_work(context: OperationContext, request: ShowPendingWork) -> PendingPluginWork:
    found = await context.store.pending_work((request.plugin,))
    if not found:
        return PendingPluginWork(plugin=request.plugin, queued=0, running=0, runs=0)
    work = found[0]
    return PendingPluginWork(plugin=request.plugin, queued=work.queued, running=work.running, runs=work.runs)


async def drain_plugin(context: OperationContext, request: DrainPlugin) -> PluginDrained:
    """Wait until no accepted work needs the plugin; it gets no new jobs from now on.

    If no reload disables it within a minute after that, it gets jobs again.
    """
    engine = context.require_engine()
    plugin = find_plugin(context.snapshot(), request.plugin)
    if plugin.enabled:
        await engine.drain((plugin.name,), request.drain_timeout)
    return PluginDrained(plugin=plugin.name, drained=True)
