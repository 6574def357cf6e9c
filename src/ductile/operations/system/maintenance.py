"""`system sweep`: remove now what has been kept long enough, instead of at the next tick."""

from __future__ import annotations

from collections import Counter

from ductile.core.json import JsonObject, JsonValue
from ductile.engine.maintenance import retention_of
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.store.invariants import INVARIANTS


async def sweep(context: OperationContext, given: JsonObject) -> JsonObject:
    """How many rows of each kind were removed; in a dry run, how many have been kept long enough."""
    retention = retention_of(context.snapshot())
    if read.flag(given, "dry_run"):
        return {"removed": dict(await context.store.count_prunable(retention)), "dry_run": True}
    removed = Counter[str]()
    more = True
    while more:  # in small units, between which jobs are claimed and settled as always
        pruned = await context.store.prune(retention)
        removed.update(pruned.rows)
        more = pruned.more
    return {"removed": dict(sorted(removed.items()))}


#: So many offenders are named for each rule: enough to look at, and a broken store has many.
_NAMED = 20


async def selfcheck(context: OperationContext, _given: JsonObject) -> JsonObject:
    """A rule that does not hold is a defect of Ductile, or somebody else has written to the store."""
    await context.store.check_files()
    checks: list[JsonValue] = []
    broken = 0
    for invariant, rule in INVARIANTS.items():
        offenders = await context.store.violations(invariant, limit=_NAMED + 1)
        broken += bool(offenders)
        checks.append(
            {
                "name": invariant.value,
                "rule": rule,
                "holds": not offenders,
                "offenders": list(offenders[:_NAMED]),
                "more": len(offenders) > _NAMED,
            }
        )
    stats = await context.store.stats()
    return {
        "sound": not broken and not stats.damage,
        "checks": checks,
        "damage": list(stats.damage),
        # Not a matter of soundness: it holds nothing that is not in the log, and has been begun anew.
        "search_rebuilt": bool(stats.search_damage),
    }
