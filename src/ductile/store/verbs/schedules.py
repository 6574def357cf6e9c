"""Schedules: where they stand, and an account of every due instant (SPEC 5.9, ENGINE 8)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.instants import format_instant
from ductile.core.ledger import LedgerEntry, LedgerKind
from ductile.store.rows import text_or_none, to_json
from ductile.store.session import Session
from ductile.store.values import Firing, FiringAnswer, Occurrence, OccurrenceOutcome, ScheduleEntry
from ductile.store.verbs.breakers import begin_probe
from ductile.store.verbs.submit import submit_job
from ductile.store.verbs.writing import write_ledger


def put_schedules(session: Session, entries: Sequence[ScheduleEntry]) -> None:
    for entry in entries:
        session.run(
            "put_schedule",
            plugin=entry.plugin,
            schedule_id=entry.schedule_id,
            fingerprint=entry.fingerprint,
            next_at=text_or_none(entry.next_at),
            nominal_at=text_or_none(entry.nominal_at),
            last_job_id=entry.last_job_id,
            last_fired_at=text_or_none(entry.last_fired_at),
            paused_at=text_or_none(entry.paused_at),
            at=session.stamp,
        )
    kept = to_json([[entry.plugin, entry.schedule_id] for entry in entries])
    session.run("forget_schedules", kept=kept)


def fire(session: Session, firing: Firing) -> FiringAnswer:
    """Occurrences, job and next instant together; nothing of it if an occurrence is accounted for already."""
    if any(_is_accounted(session, occurrence) for occurrence in firing.occurrences):
        return FiringAnswer.ALREADY_FIRED
    for occurrence in firing.occurrences:
        _record(session, occurrence)
    entry = firing.entry
    session.run(
        "advance_schedule",
        plugin=entry.plugin,
        schedule_id=entry.schedule_id,
        next_at=text_or_none(entry.next_at),
        nominal_at=text_or_none(entry.nominal_at),
        last_job_id=firing.job.id if firing.job else None,
        last_fired_at=session.stamp if firing.job else None,
        at=session.stamp,
    )
    if firing.job is None:
        return FiringAnswer.SKIPPED
    # The occurrence is the identity; a schedule's job needs no dedupe key.
    submit_job(session, firing.job, timedelta(0))
    if firing.probe:
        begin_probe(session, firing.job.plugin, firing.job.command, firing.job.id)
    return FiringAnswer.FIRED


def _is_accounted(session: Session, occurrence: Occurrence) -> bool:
    place = {
        "plugin": occurrence.plugin,
        "schedule_id": occurrence.schedule_id,
        "nominal_at": format_instant(occurrence.nominal_at),
    }
    covered = session.one("last_covered", **place)
    return session.one("occurrence_exists", **place) is not None or (
        covered is not None and covered[0] >= place["nominal_at"]
    )


def _record(session: Session, occurrence: Occurrence) -> None:
    until = format_instant(occurrence.until_at or occurrence.nominal_at)
    skipped = occurrence.outcome is OccurrenceOutcome.SKIPPED
    place = {"plugin": occurrence.plugin, "schedule_id": occurrence.schedule_id}
    last = session.one("last_occurrence", **place) if skipped else None
    if last is not None and last[1] == OccurrenceOutcome.SKIPPED and last[2] == occurrence.reason:
        # Adjacent skips for one reason are one row: a schedule that is off for a week stays readable.
        session.run("extend_skip", seq=last[0], until_at=until, count=occurrence.count)
    else:
        session.run(
            "insert_occurrence",
            **place,
            nominal_at=format_instant(occurrence.nominal_at),
            until_at=until,
            count=occurrence.count,
            outcome=occurrence.outcome,
            reason=occurrence.reason,
            job_id=occurrence.job_id,
            late_ms=None if occurrence.late is None else round(occurrence.late.total_seconds() * 1000),
            at=session.stamp,
        )
    entry = LedgerEntry(
        kind=LedgerKind.SCHEDULE_SKIPPED if skipped else LedgerKind.SCHEDULE_FIRED,
        job_id=occurrence.job_id,
        data={
            **place,
            "nominal_at": format_instant(occurrence.nominal_at),
            "count": occurrence.count,
            "reason": occurrence.reason,
        },
    )
    write_ledger(session, (entry,))


def pause(session: Session, plugin: str, schedule_id: str, *, paused: bool) -> bool:
    found = session.one(
        "pause_schedule",
        plugin=plugin,
        schedule_id=schedule_id,
        paused_at=session.stamp if paused else None,
        at=session.stamp,
    )
    if found is not None:
        kind = LedgerKind.SCHEDULE_PAUSED if paused else LedgerKind.SCHEDULE_RESUMED
        entry = LedgerEntry(kind=kind, data={"plugin": plugin, "schedule_id": schedule_id})
        write_ledger(session, (entry,))
    return found is not None
