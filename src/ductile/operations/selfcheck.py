"""`system selfcheck`: whether the store keeps its own rules, each of them, with what breaks it."""

from __future__ import annotations

from ductile.core.json_values import JsonObject, JsonValue
from ductile.operations.desk import Desk
from ductile.store.invariants import INVARIANTS

#: So many offenders are named for each rule: enough to look at, and a broken store has many.
_NAMED = 20


async def selfcheck(desk: Desk, _given: JsonObject) -> JsonObject:
    """A rule that does not hold is a defect of Ductile, or somebody else has written to the store."""
    await desk.store.check_files()
    checks: list[JsonValue] = []
    broken = 0
    for invariant, rule in INVARIANTS.items():
        offenders = await desk.store.violations(invariant, limit=_NAMED + 1)
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
    vitals = await desk.store.vitals()
    return {
        "sound": not broken and not vitals.damage,
        "checks": checks,
        "damage": list(vitals.damage),
        # Not a matter of soundness: it holds nothing that is not in the log, and has been begun anew.
        "search_rebuilt": bool(vitals.search_damage),
    }
