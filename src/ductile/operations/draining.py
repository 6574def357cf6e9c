"""Letting a plugin run dry before it is disabled, and what would end if it were disabled now."""

from __future__ import annotations

from ductile.core.json_values import JsonObject
from ductile.operations import parameters as read
from ductile.operations.catalogue import find_plugin
from ductile.operations.desk import Desk
from ductile.operations.system import drain_timeout, engine_of


async def pending_work(desk: Desk, given: JsonObject) -> JsonObject:
    """How much accepted work still needs a plugin."""
    name = read.text(given, "plugin")
    found = await desk.store.pending_work((name,))
    work = found[0] if found else None
    return {
        "plugin": name,
        "queued": work.queued if work else 0,
        "running": work.running if work else 0,
        "runs": work.runs if work else 0,
    }


async def drain_plugin(desk: Desk, given: JsonObject) -> JsonObject:
    """Wait until no accepted work needs a plugin; it takes no new jobs from now on.

    It stays closed for a minute, in which a reload has to disable it; otherwise it takes jobs again.
    """
    engine = engine_of(desk)
    plugin = find_plugin(desk.snapshot(), read.text(given, "plugin"))
    if plugin.enabled:
        await engine.drain((plugin.name,), drain_timeout(given))
    return {"plugin": plugin.name, "drained": True}
