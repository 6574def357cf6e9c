"""Letting a plugin run dry before it is disabled, and what would end if it were disabled now."""

from __future__ import annotations

from ductile.core.json import JsonObject
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.plugins.catalogue import find_plugin
from ductile.operations.system.status import drain_timeout, require_engine


async def pending_work(context: OperationContext, given: JsonObject) -> JsonObject:
    """How much accepted work still needs a plugin."""
    name = read.text(given, "plugin")
    found = await context.store.pending_work((name,))
    work = found[0] if found else None
    return {
        "plugin": name,
        "queued": work.queued if work else 0,
        "running": work.running if work else 0,
        "runs": work.runs if work else 0,
    }


async def drain_plugin(context: OperationContext, given: JsonObject) -> JsonObject:
    """Wait until no accepted work needs a plugin; it takes no new jobs from now on.

    It stays closed for a minute, in which a reload has to disable it; otherwise it takes jobs again.
    """
    engine = require_engine(context)
    plugin = find_plugin(context.snapshot(), read.text(given, "plugin"))
    if plugin.enabled:
        await engine.drain((plugin.name,), drain_timeout(given))
    return {"plugin": plugin.name, "drained": True}
