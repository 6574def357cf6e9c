"""Maintenance of the store by hand: remove expired rows now, check its invariants."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from msgspec import UNSET

from ductile.engine.maintenance import retention_of
from ductile.operations.context import OperationContext
from ductile.operations.request import DryRun, NoFields
from ductile.operations.response import Response, WasDryRun
from ductile.store.model.maintenance import Invariant
from ductile.struct import Value, about

#: The most rows that are listed for each broken invariant.
_MAX_OFFENDERS = 20


class SweepStore(Value):
    dry_run: DryRun = False


class StoreSwept(Response):
    removed: Annotated[dict[str, int], about("Rows of each kind; in a dry run, those that are due.")]
    dry_run: WasDryRun = UNSET


class InvariantResult(Value):
    name: Invariant
    rule: str
    holds: bool
    offenders: Annotated[tuple[str, ...], about("Up to 20 ids of rows that break it.")]
    more: bool


class InvariantReport(Response):
    sound: bool
    checks: tuple[InvariantResult, ...]
    damage: Annotated[tuple[str, ...], about("Damage that the database finds in its files.")]
    search_rebuilt: bool


async def sweep(context: OperationContext, request: SweepStore) -> StoreSwept:
    """Remove the rows whose retention has passed. Returns how many of each kind."""
    retention = retention_of(context.snapshot())
    if request.dry_run:
        return StoreSwept(removed=dict(await context.store.count_prunable(retention)), dry_run=True)
    removed = Counter[str]()
    more = True
    while more:  # In small batches: jobs are claimed and settled in between.
        pruned = await context.store.prune(retention)
        removed.update(pruned.rows)
        more = pruned.more
    return StoreSwept(removed=dict(sorted(removed.items())))


async def selfcheck(context: OperationContext, _request: NoFields) -> InvariantReport:
    """Check every invariant of the store.

    A broken one is a bug in Ductile, or another program has written to the store.
    """
    await context.store.check_files()
    checks = []
    for invariant in Invariant:
        offenders = await context.store.find_violations(invariant, limit=_MAX_OFFENDERS + 1)
        checks.append(
            InvariantResult(
                name=invariant,
                rule=invariant.description,
                holds=not offenders,
                offenders=tuple(offenders[:_MAX_OFFENDERS]),
                more=len(offenders) > _MAX_OFFENDERS,
            )
        )
    stats = await context.store.stats()
    return InvariantReport(
        sound=all(check.holds for check in checks) and not stats.damage,
        checks=tuple(checks),
        damage=stats.damage,
        # The search index can be built again from the log, so its damage does not count.
        search_rebuilt=bool(stats.search_damage),
    )
