"""Whether the history of a schedule is complete: held against its rule, instant by instant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ductile.core.json import JsonObject
from ductile.core.schedules.audit import RUN_NOW, Gap, find_gaps, first_end
from ductile.core.schedules.planner import SkipReason
from ductile.core.schedules.rule import CLOCK_SLACK, After, Every, ScheduleRule, fingerprint_of
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant
from ductile.store.model.schedules import Occurrence, OccurrenceOutcome, ScheduleEntry

_TICK = timedelta(microseconds=1)


async def audit_history(
    context: OperationContext, entry: ScheduleEntry, rows: Sequence[Occurrence], *, newest: bool
) -> JsonObject:
    """What these rows prove; `newest` says that what comes after them is the schedule's next occurrence.

    `complete` is None where nothing can be proven, and `about` says why.
    """
    rule = _rule_of(context, entry)
    if rule is None:
        return _unproven("the schedule was changed after these were due")
    held = _held_to(rule, entry, [*rows, *_deferred(entry, rows)])
    if not held:
        return _unproven("nothing has been due since the schedule was last changed")
    since, last = held[0].nominal_at, max(row.until_at or row.nominal_at for row in held)
    until = last
    if newest and entry.nominal_at is not None:
        until = max(last, entry.nominal_at - _TICK)
    ended = await _ends(context, held) if isinstance(rule.trigger, Every) else {}
    gaps = find_gaps(held, rule, since=since, until=until, ended=ended)
    return {
        "complete": not gaps,
        "from": instant(since),
        "to": instant(last),
        "gaps": [_shown(gap) for gap in gaps],
        "about": None,
    }


def _rule_of(context: OperationContext, entry: ScheduleEntry) -> ScheduleRule | None:
    """The rule of the configuration, if the schedule is still what the store knows it as."""
    plugin = context.snapshot().plugins.get(entry.plugin)
    schedules = () if plugin is None else plugin.schedules
    rule = next((each.rule for each in schedules if each.id == entry.schedule_id), None)
    if rule is None or isinstance(rule.trigger, After):  # its one instant hangs on the start of the service
        return rule
    same = fingerprint_of(rule, context.now()) == entry.fingerprint
    return rule if same else None


def _deferred(entry: ScheduleEntry, rows: Sequence[Occurrence]) -> list[Occurrence]:
    """The occurrence that waits for other polls: it has no row before it runs, and is no gap."""
    deferred = entry.deferred
    if deferred is None or any(deferred.nominal_at < _due_at(row) for row in rows[-1:]):
        return []
    return [
        Occurrence(
            plugin=entry.plugin,
            schedule_id=entry.schedule_id,
            nominal_at=deferred.nominal_at,
            outcome=OccurrenceOutcome.LATE,
            reason=SkipReason.OUTSTANDING_POLLS,
        )
    ]


def _held_to(rule: ScheduleRule, entry: ScheduleEntry, rows: Sequence[Occurrence]) -> list[Occurrence]:
    """The rows that the rule can be held to, oldest first: those since it is the rule.

    The row of a run that waited for other polls is written after those of later instants, which may be on the
    page before. So the first row that was written in its turn begins, if there is one.
    """
    begin = None if entry.defined_at is None else entry.defined_at - CLOCK_SLACK
    found = sorted((row for row in rows if begin is None or row.nominal_at >= begin), key=_due_at)
    # An `every` counts from a run by hand; the instants of the others do not move.
    named = found if isinstance(rule.trigger, Every) else [row for row in found if row.reason != RUN_NOW]
    in_turn = [row for row in named if not _waited(row)] or named
    return [row for row in found if in_turn and row.nominal_at >= in_turn[0].nominal_at]


def _waited(row: Occurrence) -> bool:
    return row.outcome is OccurrenceOutcome.LATE and row.reason == SkipReason.OUTSTANDING_POLLS


def _due_at(row: Occurrence) -> datetime:
    return row.nominal_at


async def _ends(context: OperationContext, rows: Sequence[Occurrence]) -> dict[str, datetime]:
    """When each run ended first. One that was retried by hand has ended again since, to no effect here."""
    ends: dict[str, datetime] = {}
    for job_id in (row.job_id for row in rows if row.job_id is not None):
        changes = await context.store.transitions(job_id)
        if (end := first_end([(each.at, each.transition) for each in changes])) is not None:
            ends[job_id] = end
    return ends


def _unproven(about: str) -> JsonObject:
    return {"complete": None, "from": None, "to": None, "gaps": [], "about": about}


def _shown(gap: Gap) -> JsonObject:
    return {
        "from": instant(gap.from_at),
        "to": instant(gap.to_at),
        "expected": gap.expected,
        "found": gap.found,
    }
