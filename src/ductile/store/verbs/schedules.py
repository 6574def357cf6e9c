"""Schedules: where they stand, and an account of every due instant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus, LedgerEntry, LedgerKind, NewJob
from ductile.core.json import JsonObject
from ductile.core.schedules.admission import Admitted, FireView, decide_admission
from ductile.core.schedules.planner import SkipReason
from ductile.core.schedules.rule import IfRunning, Slot
from ductile.core.timestamps import format_timestamp
from ductile.store.model.schedules import (
    FireResult,
    FireStatus,
    Firing,
    Occurrence,
    OccurrenceOutcome,
    ScheduleEntry,
)
from ductile.store.model.submission import JobStateChange
from ductile.store.notifier import SCHEDULES_CHANGED
from ductile.store.rows import read_breaker, read_job, read_schedule, text_or_none, to_json
from ductile.store.session import Session
from ductile.store.verbs.breakers import begin_probe
from ductile.store.verbs.cancel import cancel
from ductile.store.verbs.insert import submit_job
from ductile.store.verbs.ledger import write_ledger
from ductile.store.verbs.occurrences import has_row, record
from ductile.struct import replace

_REFUSALS = {
    SkipReason.RUNNING: FireStatus.REFUSED_RUNNING,
    SkipReason.OUTSTANDING_POLLS: FireStatus.REFUSED_POLLS,
}


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
            at=session.timestamp,
        )
    kept = to_json([[entry.plugin, entry.schedule_id] for entry in entries])
    session.run("forget_schedules", kept=kept)


def fire(session: Session, firing: Firing) -> FireResult:
    """Occurrences, jobs and next instant together, or nothing where it is not what it was planned from."""
    if (refusal := _outdated(session, firing)) is not None:
        return FireResult(answer=refusal)
    firing = _without_repeats(session, firing)
    chain = _live_chain(session, firing.entry) if firing.job is not None else ()
    start = _decide(session, firing, chain)
    if firing.on_demand and isinstance(start, SkipReason):
        return FireResult(answer=_REFUSALS[start])
    if start is SkipReason.OUTSTANDING_POLLS:
        return _defer(session, firing)
    jobs = _started_jobs(firing, start)
    ids = {job.id for job in jobs}
    for occurrence in firing.occurrences:
        kept = occurrence.job_id is None or occurrence.job_id in ids
        record(session, occurrence if kept else _not_started(occurrence, start))
    replaced = _replace(session, firing, chain) if jobs else ()
    previous = _predecessor(firing, chain, replaced) if jobs else None
    for job in jobs:
        # The occurrence is the identity; a schedule's job needs no dedupe key.
        submit_job(session, replace(job, after_job_id=job.after_job_id or previous), timedelta(0))
        previous = job.id
    if jobs and isinstance(start, Admitted) and start.probe:
        begin_probe(session, jobs[0].plugin, jobs[0].command, jobs[0].id)
    _advance(session, firing.entry, jobs)
    return FireResult(
        answer=FireStatus.FIRED if jobs else FireStatus.SKIPPED,
        ended=tuple(_as_cancelled(job) for job in replaced if job.status is JobStatus.QUEUED),
        stopping=tuple(job.id for job in replaced if job.status is JobStatus.RUNNING),
        reason=start if isinstance(start, SkipReason) else None,
    )


def _defer(session: Session, firing: Firing) -> FireResult:
    """Other polls are outstanding: the occurrence waits until one of them has ended."""
    report = FireResult(answer=FireStatus.DEFERRED, reason=SkipReason.OUTSTANDING_POLLS)
    if firing.was_deferred:
        return report
    deferred = None
    for occurrence in firing.occurrences:
        if occurrence.job_id is None:
            record(session, occurrence)
        else:
            due_at = session.now - (occurrence.late or timedelta(0))
            deferred = Slot(nominal_at=occurrence.nominal_at, start_at=due_at)
            data: JsonObject = {
                "plugin": occurrence.plugin,
                "schedule_id": occurrence.schedule_id,
                "nominal_at": format_timestamp(occurrence.nominal_at),
                "reason": SkipReason.OUTSTANDING_POLLS,
            }
            write_ledger(session, (LedgerEntry(kind=LedgerKind.SCHEDULE_DEFERRED, data=data),))
    _advance(session, replace(firing.entry, deferred=deferred), ())
    return report


def _outdated(session: Session, firing: Firing) -> FireStatus | None:
    """Why a firing comes too late: the schedule is no longer where it was, or this was done before."""
    if firing.planned_from is None:
        done = any(_is_accounted(session, occurrence) for occurrence in firing.occurrences)
        return FireStatus.ALREADY_FIRED if done else None
    entry = firing.planned_from
    row = session.one("schedule", plugin=entry.plugin, schedule_id=entry.schedule_id)
    return FireStatus.STALE if row is None or read_schedule(row) != entry else None


def _without_repeats(session: Session, firing: Firing) -> Firing:
    """Leave out what has a row of its own: after the clock was set back, an instant comes again."""
    if firing.on_demand:
        return replace(
            firing, occurrences=tuple(_at_free_instant(session, each) for each in firing.occurrences)
        )
    fresh = tuple(each for each in firing.occurrences if not has_row(session, each))
    if len(fresh) == len(firing.occurrences):
        return firing
    ids = {each.job_id for each in fresh}
    jobs = [job for job in (firing.job, *firing.followers) if job is not None and job.id in ids]
    return replace(firing, occurrences=fresh, job=jobs[0] if jobs else None, followers=tuple(jobs[1:]))


def _at_free_instant(session: Session, occurrence: Occurrence) -> Occurrence:
    """A run that was asked for is named after its instant, which another occurrence may have taken."""
    while has_row(session, occurrence):
        occurrence = replace(occurrence, nominal_at=occurrence.nominal_at + timedelta(microseconds=1))
    return occurrence


def _live_chain(session: Session, entry: ScheduleEntry) -> tuple[Job, ...]:
    """The schedule's latest run and those it waits for, as far as they have not ended."""
    row = session.one("schedule", plugin=entry.plugin, schedule_id=entry.schedule_id)
    job_id = None if row is None else read_schedule(row).last_job_id
    chain: list[Job] = []
    while job_id is not None and (found := session.one("job_for_settle", id=job_id)) is not None:
        job = read_job(found)
        if job.status in TERMINAL:
            break
        chain.append(job)
        after = session.one("after_job_of", seq=job.seq)
        job_id = after[0] if after else None
    return tuple(chain)


def _decide(session: Session, firing: Firing, chain: Sequence[Job]) -> Admitted | SkipReason:
    job, conditions = firing.job, firing.conditions
    if job is None or conditions is None:
        return Admitted(probe=firing.probe)
    outstanding = 0
    if conditions.max_polls is not None:
        row = session.one("outstanding", plugin=job.plugin, command=job.command)
        outstanding = row[0] if row else 0
        if conditions.if_running is IfRunning.CANCEL:
            outstanding -= sum(each.command == job.command for each in chain)
    breaker = session.one("breaker", plugin=job.plugin, command=job.command)
    view = FireView(
        previous_live=bool(chain),
        outstanding=outstanding,
        breaker=None if breaker is None else read_breaker(breaker),
        deferred=firing.entry.deferred is not None and not firing.on_demand,
    )
    return decide_admission(conditions, view, session.now)


def _started_jobs(firing: Firing, start: Admitted | SkipReason) -> tuple[NewJob, ...]:
    """What really goes on the queue. A probe goes alone: the others would not wait for its verdict."""
    if firing.job is None or isinstance(start, SkipReason):
        return ()
    return (firing.job,) if start.probe else (firing.job, *firing.followers)


def _not_started(occurrence: Occurrence, start: Admitted | SkipReason) -> Occurrence:
    reason = start if isinstance(start, SkipReason) else SkipReason.BREAKER_HALF_OPEN
    return replace(
        occurrence, outcome=OccurrenceOutcome.SKIPPED, reason=reason, job_id=None, late=None, until_at=None
    )


def _replace(session: Session, firing: Firing, chain: Sequence[Job]) -> Sequence[Job]:
    """With `cancel`, what runs is asked to end and what is queued does; these jobs, as they were."""
    if firing.conditions is None or firing.conditions.if_running is not IfRunning.CANCEL:
        return ()
    for job in chain:
        # When the next run is due, should this end have a say in it, is written again below.
        cancel(session, job.id, firing.rules)
    return chain


def _predecessor(firing: Firing, chain: Sequence[Job], replaced: Sequence[Job]) -> str | None:
    """The job that the new one waits for: the latest, or the one of those replaced that still runs."""
    if replaced:
        return next((job.id for job in replaced if job.status is JobStatus.RUNNING), None)
    return chain[0].id if chain and firing.conditions is not None else None


def _as_cancelled(job: Job) -> JobStateChange:
    return JobStateChange(
        id=job.id,
        plugin=job.plugin,
        command=job.command,
        status=JobStatus.DEAD,
        reason=JobReason.CANCELLED,
        attempt=job.attempt,
    )


def _advance(session: Session, entry: ScheduleEntry, jobs: Sequence[NewJob]) -> None:
    deferred = entry.deferred
    session.run(
        "advance_schedule",
        plugin=entry.plugin,
        schedule_id=entry.schedule_id,
        next_at=text_or_none(entry.next_at),
        nominal_at=text_or_none(entry.nominal_at),
        last_job_id=jobs[-1].id if jobs else None,
        last_fired_at=session.timestamp if jobs else None,
        deferred_nominal_at=None if deferred is None else format_timestamp(deferred.nominal_at),
        deferred_due_at=None if deferred is None else format_timestamp(deferred.start_at),
        at=session.timestamp,
    )


def _is_accounted(session: Session, occurrence: Occurrence) -> bool:
    place = {
        "plugin": occurrence.plugin,
        "schedule_id": occurrence.schedule_id,
        "nominal_at": format_timestamp(occurrence.nominal_at),
    }
    covered = session.one("last_covered", **place)
    return has_row(session, occurrence) or (covered is not None and covered[0] >= place["nominal_at"])


def pause_schedule(session: Session, plugin: str, schedule_id: str, *, paused: bool) -> bool:
    found = session.one(
        "pause_schedule",
        plugin=plugin,
        schedule_id=schedule_id,
        paused_at=session.timestamp if paused else None,
        at=session.timestamp,
    )
    if found is not None:
        kind = LedgerKind.SCHEDULE_PAUSED if paused else LedgerKind.SCHEDULE_RESUMED
        entry = LedgerEntry(kind=kind, data={"plugin": plugin, "schedule_id": schedule_id})
        write_ledger(session, (entry,))
        session.publish(SCHEDULES_CHANGED)
    return found is not None
