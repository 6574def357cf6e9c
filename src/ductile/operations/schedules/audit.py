"""`schedule history`: past occurrences, and whether every due instant among them is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

from ductile.core.schedules.audit import RUN_NOW, end_before_manual_retry, find_gaps
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome, SkipReason
from ductile.core.schedules.rule import CLOCK_SLACK, After, Every, ScheduleRule, fingerprint_of
from ductile.operations.context import OperationContext
from ductile.operations.request import Cursor, PageLimit
from ductile.operations.response import (
    Id,
    NextCursor,
    Response,
    Timestamp,
    from_record,
    milliseconds,
    timestamp,
)
from ductile.operations.schedules.manage import OneSchedule, configured_schedule, find_schedule
from ductile.store.model.records import DEFAULT_PAGE
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import Value, about, field

_TICK = timedelta(microseconds=1)


class ShowHistory(OneSchedule):
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None


class PastOccurrence(Value):
    """One due instant, or several adjacent ones that were skipped for the same reason."""

    nominal_at: Timestamp
    until_at: Timestamp | None
    count: int
    outcome: OccurrenceOutcome
    reason: str | None
    job_id: Id | None
    late_ms: float | None
    job_status: Annotated[
        str | None,
        about("The present status of the job; null if none was started, or if it is no longer kept."),
    ]


class HistoryGap(Value):
    from_at: Timestamp = field(name="from")
    to_at: Timestamp = field(name="to")
    expected: int
    found: int


class HistoryAudit(Value):
    complete: Annotated[bool | None, about("Null where that is unknown; `about` says why.")]
    from_at: Timestamp | None = field(name="from")
    to_at: Timestamp | None = field(name="to")
    gaps: tuple[HistoryGap, ...]
    about: str | None


class ScheduleHistory(Response):
    plugin: str
    id: str
    occurrences: Annotated[tuple[PastOccurrence, ...], about("Newest first.")]
    account: HistoryAudit
    next_cursor: NextCursor


async def show_history(context: OperationContext, request: ShowHistory) -> ScheduleHistory:
    """Return a page of the past occurrences of a schedule, and an audit of them. Raises `NotFoundError`."""
    entry = await find_schedule(context, request.plugin, request.schedule)
    page = await context.store.list_occurrences(
        entry.plugin, entry.schedule_id, limit=request.limit, cursor=request.cursor
    )
    return ScheduleHistory(
        plugin=entry.plugin,
        id=entry.schedule_id,
        occurrences=tuple(past_occurrence(row) for row in page.rows),
        account=await audit_history(context, entry, page.rows, newest=request.cursor is None),
        next_cursor=page.next_cursor,
    )


def past_occurrence(row: Occurrence) -> PastOccurrence:
    return from_record(PastOccurrence, row, late_ms=milliseconds(row.late))


async def audit_history(
    context: OperationContext, entry: ScheduleEntry, rows: Sequence[Occurrence], *, newest: bool
) -> HistoryAudit:
    """Return the gaps in occurrences: instants that are due by the schedule's rule and have no row.

    With `newest` the rows are the latest ones, which must reach up to the schedule's next occurrence.
    """
    schedule = configured_schedule(context, entry.plugin, entry.schedule_id)
    rule = None if schedule is None else schedule.rule
    # The one instant of an `after` depends on the start of the daemon, so its fingerprint does too.
    is_after = rule is not None and isinstance(rule.trigger, After)
    if rule is None or not (is_after or fingerprint_of(rule, context.now()) == entry.fingerprint):
        return _unproven_audit("the schedule was changed after these were due")
    checked = _rows_under_rule(rule, entry, rows)
    if not checked:
        return _unproven_audit("nothing has been due since the schedule was last changed")
    since = checked[0].nominal_at
    last = until = max(row.until_at or row.nominal_at for row in checked)
    if newest and entry.nominal_at is not None:
        until = max(last, entry.nominal_at - _TICK)
    ended: dict[str, datetime] = {}
    for job_id in [row.job_id for row in checked if isinstance(rule.trigger, Every) and row.job_id]:
        # An `every` counts from the first end of its run; a retry by hand does not move it.
        changes = await context.store.list_transitions(job_id)
        if (
            end := end_before_manual_retry([(change.at, change.transition) for change in changes])
        ) is not None:
            ended[job_id] = end
    gaps = find_gaps(checked, rule, since=since, until=until, ended=ended)
    return HistoryAudit(
        complete=not gaps,
        from_at=timestamp(since),
        to_at=timestamp(last),
        gaps=tuple(from_record(HistoryGap, gap) for gap in gaps),
        about=None,
    )


def _unproven_audit(about: str) -> HistoryAudit:
    return HistoryAudit(complete=None, from_at=None, to_at=None, gaps=(), about=about)


def _rows_under_rule(
    rule: ScheduleRule, entry: ScheduleEntry, rows: Sequence[Occurrence]
) -> list[Occurrence]:
    """Return the rows since the rule came into force, oldest first.

    A run that waited for other polls gets its row after those of later instants, which may be on the page
    before. So the audit begins with the first row that was written in order, if there is one.
    """
    deferred = entry.deferred
    if deferred is not None and not any(deferred.nominal_at < row.nominal_at for row in rows[-1:]):
        # An occurrence that waits for other polls gets its row when it runs, so it is no gap.
        waiting = Occurrence(
            plugin=entry.plugin,
            schedule_id=entry.schedule_id,
            nominal_at=deferred.nominal_at,
            outcome=OccurrenceOutcome.LATE,
            reason=SkipReason.OUTSTANDING_POLLS,
        )
        rows = [*rows, waiting]
    begin = None if entry.defined_at is None else entry.defined_at - CLOCK_SLACK
    in_force = sorted(
        (row for row in rows if begin is None or row.nominal_at >= begin), key=lambda row: row.nominal_at
    )
    # Only an `every` counts from a run by hand; the instants of other rules do not move.
    timed = [row for row in in_force if isinstance(rule.trigger, Every) or row.reason != RUN_NOW]
    in_order = [
        row
        for row in timed
        if (row.outcome, row.reason) != (OccurrenceOutcome.LATE, SkipReason.OUTSTANDING_POLLS)
    ] or timed
    return [row for row in in_force if in_order and row.nominal_at >= in_order[0].nominal_at]
