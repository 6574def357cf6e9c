"""`system sweep`: remove now what has been kept long enough, instead of at the next tick."""

from __future__ import annotations

from collections import Counter

from ductile.core.json_values import JsonObject
from ductile.engine.upkeep import retention_of
from ductile.operations import parameters as read
from ductile.operations.desk import Desk


async def sweep(desk: Desk, given: JsonObject) -> JsonObject:
    """How many rows of each kind were removed; in a dry run, how many have been kept long enough."""
    retention = retention_of(desk.snapshot())
    if read.flag(given, "dry_run"):
        return {"removed": dict(await desk.store.prunable(retention)), "dry_run": True}
    removed = Counter[str]()
    more = True
    while more:  # in small units, between which jobs are claimed and settled as always
        pruned = await desk.store.prune(retention)
        removed.update(pruned.rows)
        more = pruned.more
    return {"removed": dict(sorted(removed.items()))}
