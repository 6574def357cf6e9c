"""Rows of accounted time: one for each due instant of a schedule, or for adjacent ones that were skipped."""

from __future__ import annotations

from ductile.core.jobs.model import LedgerEntry, LedgerKind
from ductile.core.timestamps import format_timestamp
from ductile.store.model.schedules import Occurrence, OccurrenceOutcome
from ductile.store.session import Cell, Session
from ductile.store.verbs.ledger import write_ledger


def has_row(session: Session, occurrence: Occurrence) -> bool:
    found = session.one(
        "occurrence_exists",
        plugin=occurrence.plugin,
        schedule_id=occurrence.schedule_id,
        nominal_at=format_timestamp(occurrence.nominal_at),
    )
    return found is not None


def record(session: Session, occurrence: Occurrence) -> None:
    until = format_timestamp(occurrence.until_at or occurrence.nominal_at)
    skipped = occurrence.outcome is OccurrenceOutcome.SKIPPED
    late = None if occurrence.late is None else round(occurrence.late.total_seconds() * 1000)
    place = {"plugin": occurrence.plugin, "schedule_id": occurrence.schedule_id}
    last = session.one("last_occurrence", **place) if skipped else None
    if last is not None and _continues(last, occurrence):
        # Adjacent skips for one reason are one row: a schedule that is off for a week stays readable.
        session.run("extend_skip", seq=last[0], until_at=until, count=occurrence.count)
    else:
        session.run(
            "insert_occurrence",
            **place,
            nominal_at=format_timestamp(occurrence.nominal_at),
            until_at=until,
            count=occurrence.count,
            outcome=occurrence.outcome,
            reason=occurrence.reason,
            job_id=occurrence.job_id,
            late_ms=late,
            at=session.timestamp,
        )
    entry = LedgerEntry(
        kind=LedgerKind.SCHEDULE_SKIPPED if skipped else LedgerKind.SCHEDULE_FIRED,
        job_id=occurrence.job_id,
        data={
            **place,
            "nominal_at": format_timestamp(occurrence.nominal_at),
            "until_at": until,
            "count": occurrence.count,
            "reason": occurrence.reason,
            "late_ms": late,
        },
    )
    write_ledger(session, (entry,))


def _continues(last: tuple[Cell, ...], occurrence: Occurrence) -> bool:
    """Whether a skip goes on with the row before it, and lies after it: the clock may have been set back."""
    _, outcome, reason, until = last
    later: bool = until < format_timestamp(occurrence.nominal_at)
    return later and outcome == OccurrenceOutcome.SKIPPED and bool(reason == occurrence.reason)
