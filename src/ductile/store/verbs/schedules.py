"""Schedules: their entries, and the firing of a due instant with all of its rows in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from ductile.core.jobs.model import TERMINAL, Job, LedgerKind, NewJob
from ductile.core.json import JsonObject
from ductile.core.schedules.admission import Admitted, FireView, decide_admission
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome, SkipReason
from ductile.core.schedules.rule import IfRunning, PlannedOccurrence
from ductile.core.timestamps import format_timestamp
from ductile.core.token_limits import target_of
from ductile.store.model.jobs import CancelResult
from ductile.store.model.records import Page
from ductile.store.model.schedules import FireResult, FireStatus, Firing, ScheduleEntry
from ductile.store.notifier import SCHEDULES_CHANGED
from ductile.store.rows import (
    find_job,
    read_breaker,
    read_occurrence,
    read_page,
    read_schedule,
    timestamp_or_none,
    to_json,
)
from ductile.store.session import Session
from ductile.store.verbs.jobs.cancel import cancel
from ductile.store.verbs.jobs.insert import submit_job
from ductile.store.verbs.ledger import append_ledger, has_occurrence, write_occurrence
from ductile.store.verbs.plugins import begin_probe
from ductile.store.verbs.token_usage import charge_jobs
from ductile.struct import asdict, replace

_REFUSALS = {
    SkipReason.RUNNING: FireStatus.REFUSED_RUNNING,
    SkipReason.OUTSTANDING_POLLS: FireStatus.REFUSED_POLLS,
}


def put_schedules(session: Session, entries: Sequence[ScheduleEntry]) -> None:
    """Replace all schedules by these. One with an unchanged definition keeps its next instant."""
    for entry in entries:
        row = asdict(entry) | {
            "next_at": timestamp_or_none(entry.next_at),
            "nominal_at": timestamp_or_none(entry.nominal_at),
            "last_fired_at": timestamp_or_none(entry.last_fired_at),
            "paused_at": timestamp_or_none(entry.paused_at),
        }
        session.execute("put_schedule", **row, at=session.timestamp)
    keys = to_json([[entry.plugin, entry.schedule_id] for entry in entries])
    session.execute("forget_schedules", kept=keys)


def fire(session: Session, firing: Firing) -> FireResult:
    """Record a due schedule: occurrences, jobs and next instant together.

    Changes nothing if the schedule has changed since the firing was planned.
    """
    if (status := _find_outdated(session, firing)) is not None:
        return FireResult(status=status)
    firing = _without_repeats(session, firing)
    chain = _live_chain(session, firing.entry) if firing.job is not None else ()
    admission = _decide_start(session, firing, chain)
    if isinstance(admission, SkipReason):
        if firing.on_demand:
            return FireResult(status=_REFUSALS[admission])
        if admission is SkipReason.OUTSTANDING_POLLS:
            return _defer(session, firing)
    return _record(session, firing, chain, admission)


def _record(
    session: Session, firing: Firing, chain: Sequence[Job], admission: Admitted | SkipReason
) -> FireResult:
    """Write the occurrences and the next instant, and the jobs if they are admitted."""
    conditions = firing.conditions
    reason = admission if isinstance(admission, SkipReason) else None
    is_probe = isinstance(admission, Admitted) and admission.probe
    jobs: tuple[NewJob, ...] = ()
    if firing.job is not None and reason is None:
        # A probe starts alone: catch-up jobs would not wait for its result.
        jobs = (firing.job,) if is_probe else (firing.job, *firing.catch_up_jobs)
    started_ids = {None, *(job.id for job in jobs)}
    for occurrence in firing.occurrences:
        if occurrence.job_id in started_ids:
            write_occurrence(session, occurrence)
        else:
            skipped = replace(
                occurrence,
                outcome=OccurrenceOutcome.SKIPPED,
                reason=reason or SkipReason.BREAKER_HALF_OPEN,
                job_id=None,
                late=None,
                until_at=None,
            )
            write_occurrence(session, skipped)
    cancelled: list[CancelResult] = []
    if jobs and conditions is not None and conditions.if_running is IfRunning.CANCEL:
        cancelled = [cancel(session, earlier.id, firing.policy) for earlier in chain]
    stopping = tuple(job_id for result in cancelled for job_id in result.stopping)
    if cancelled:
        previous = stopping[0] if stopping else None
    else:
        previous = chain[0].id if chain and conditions is not None else None
    for job in jobs:
        # The occurrence is the job's identity, so it needs no dedupe key.
        submit_job(session, replace(job, after_job_id=job.after_job_id or previous), timedelta(0))
        previous = job.id
    if firing.charge is not None:
        charge_jobs(session, firing.charge, Counter(target_of(job.plugin, job.command) for job in jobs))
    if jobs and is_probe:
        begin_probe(session, jobs[0].plugin, jobs[0].command, jobs[0].id)
    _advance(session, firing.entry, jobs)  # after the cancels, whose settlements also write the next instant
    return FireResult(
        status=FireStatus.FIRED if jobs else FireStatus.SKIPPED,
        ended=tuple(change for result in cancelled for change in result.ended),
        stopping=stopping,
        reason=reason,
    )


def _defer(session: Session, firing: Firing) -> FireResult:
    """Let the occurrence wait until one of the outstanding polls has ended."""
    result = FireResult(status=FireStatus.DEFERRED, reason=SkipReason.OUTSTANDING_POLLS)
    if firing.was_deferred:
        return result
    deferred = None
    for occurrence in firing.occurrences:
        if occurrence.job_id is None:
            write_occurrence(session, occurrence)
        else:
            due_at = session.now - (occurrence.late or timedelta(0))
            deferred = PlannedOccurrence(nominal_at=occurrence.nominal_at, start_at=due_at)
            data: JsonObject = {
                "plugin": occurrence.plugin,
                "schedule_id": occurrence.schedule_id,
                "nominal_at": format_timestamp(occurrence.nominal_at),
                "reason": SkipReason.OUTSTANDING_POLLS,
            }
            append_ledger(session, LedgerKind.SCHEDULE_DEFERRED, data)
    _advance(session, replace(firing.entry, deferred=deferred), ())
    return result


def _find_outdated(session: Session, firing: Firing) -> FireStatus | None:
    """Return why a firing comes too late: the schedule has changed, or its occurrences are recorded."""
    if firing.planned_from is None:
        for occurrence in firing.occurrences:
            nominal_at = format_timestamp(occurrence.nominal_at)
            key = {"plugin": occurrence.plugin, "schedule_id": occurrence.schedule_id}
            covered_until = session.fetch_value("last_covered", **key, nominal_at=nominal_at)
            if covered_until is not None and covered_until >= nominal_at:
                return FireStatus.ALREADY_FIRED
        return None
    entry = firing.planned_from
    row = session.fetch_one("schedule", plugin=entry.plugin, schedule_id=entry.schedule_id)
    return FireStatus.STALE if row is None or read_schedule(row) != entry else None


def _without_repeats(session: Session, firing: Firing) -> Firing:
    """Leave out recorded occurrences: an instant comes again after the clock was set back."""
    if firing.on_demand:  # the instant only identifies the occurrence: the next free one does as well
        moved = []
        for occurrence in firing.occurrences:
            while has_occurrence(session, occurrence):
                later = occurrence.nominal_at + timedelta(microseconds=1)
                occurrence = replace(occurrence, nominal_at=later)  # noqa: PLW2901
            moved.append(occurrence)
        return replace(firing, occurrences=tuple(moved))
    new = tuple(due for due in firing.occurrences if not has_occurrence(session, due))
    if len(new) == len(firing.occurrences):
        return firing
    ids = {occurrence.job_id for occurrence in new}
    jobs = [job for job in (firing.job, *firing.catch_up_jobs) if job is not None and job.id in ids]
    return replace(firing, occurrences=new, job=jobs[0] if jobs else None, catch_up_jobs=tuple(jobs[1:]))


def _live_chain(session: Session, entry: ScheduleEntry) -> tuple[Job, ...]:
    """Return the schedule's latest job and the jobs that it waits for, until the first that has ended."""
    row = session.fetch_one("schedule", plugin=entry.plugin, schedule_id=entry.schedule_id)
    job_id = None if row is None else read_schedule(row).last_job_id
    chain: list[Job] = []
    while job_id is not None and (job := find_job(session, job_id)) is not None:
        if job.status in TERMINAL:
            break
        chain.append(job)
        job_id = session.fetch_value("predecessor_of", seq=job.seq)
    return tuple(chain)


def _decide_start(session: Session, firing: Firing, chain: Sequence[Job]) -> Admitted | SkipReason:
    """Return whether the job of a firing may start, or why it is skipped."""
    job, conditions = firing.job, firing.conditions
    if job is None or conditions is None:
        return Admitted(probe=firing.probe)
    outstanding = 0
    if conditions.max_polls is not None:
        outstanding = session.fetch_value("outstanding", plugin=job.plugin, command=job.command)
        if conditions.if_running is IfRunning.CANCEL:
            outstanding -= sum(other.command == job.command for other in chain)
    breaker = session.fetch_one("breaker", plugin=job.plugin, command=job.command)
    view = FireView(
        previous_live=bool(chain),
        outstanding=outstanding,
        breaker=None if breaker is None else read_breaker(breaker),
        deferred=firing.entry.deferred is not None and not firing.on_demand,
    )
    return decide_admission(conditions, view, session.now)


def _advance(session: Session, entry: ScheduleEntry, jobs: Sequence[NewJob]) -> None:
    deferred = entry.deferred
    session.execute(
        "advance_schedule",
        plugin=entry.plugin,
        schedule_id=entry.schedule_id,
        next_at=timestamp_or_none(entry.next_at),
        nominal_at=timestamp_or_none(entry.nominal_at),
        last_job_id=jobs[-1].id if jobs else None,
        last_fired_at=session.timestamp if jobs else None,
        deferred_nominal_at=deferred and format_timestamp(deferred.nominal_at),
        deferred_due_at=deferred and format_timestamp(deferred.start_at),
        at=session.timestamp,
    )


def pause_schedule(session: Session, plugin: str, schedule_id: str, *, paused: bool) -> bool:
    """Pause or resume a schedule. Returns False if there is no such schedule."""
    row = session.fetch_one(
        "pause_schedule",
        plugin=plugin,
        schedule_id=schedule_id,
        paused_at=session.timestamp if paused else None,
        at=session.timestamp,
    )
    if row is not None:
        kind = LedgerKind.SCHEDULE_PAUSED if paused else LedgerKind.SCHEDULE_RESUMED
        append_ledger(session, kind, {"plugin": plugin, "schedule_id": schedule_id})
        session.publish(SCHEDULES_CHANGED)
    return row is not None


def list_schedules(session: Session) -> tuple[ScheduleEntry, ...]:
    return tuple(map(read_schedule, session.fetch_all("all_schedules")))


def list_occurrences(
    session: Session, plugin: str, schedule_id: str, *, limit: int, cursor: str | None = None
) -> Page[Occurrence]:
    """Return the occurrences of a schedule, newest first."""
    return read_page(
        session,
        "occurrences_of_schedule",
        {"plugin": plugin, "schedule_id": schedule_id},
        lambda row: read_occurrence(row[1:]),
        limit=limit,
        cursor=cursor,
    )
