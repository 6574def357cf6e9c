"""Compute the values that the scheduler writes to the store: schedule entries and firings. Pure functions.

An entry is the stored position of a schedule: its next occurrence. A firing is one write: occurrences with
their outcome, the jobs to enqueue, and the entry with the occurrence after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeAlias

from ductile.config.snapshot import PluginInstance, Schedule, Snapshot
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.core.schedules.admission import StartConditions
from ductile.core.schedules.audit import RUN_NOW
from ductile.core.schedules.planner import (
    DuePlan,
    DueRun,
    Occurrence,
    OccurrenceOutcome,
    Skip,
    SkipReason,
    disallowed_reason,
    lateness,
)
from ductile.core.schedules.rule import (
    Every,
    IfRunning,
    PlannedOccurrence,
    ScheduleRule,
    add_intervals,
    fingerprint_of,
    first_occurrence,
    is_in_window,
    move_into_window,
    occurrence_after_edit,
)
from ductile.store.model.jobs import TokenCharge
from ductile.store.model.schedules import Firing, ScheduleEntry
from ductile.struct import Value, replace

#: The plugin's name and the schedule's id.
ScheduleKey: TypeAlias = tuple[str, str]


class ActiveSchedule(Value):
    """A configured schedule of a plugin that can run."""

    plugin: PluginInstance
    schedule: Schedule

    @property
    def rule(self) -> ScheduleRule:
        return self.schedule.rule

    @property
    def key(self) -> ScheduleKey:
        return self.plugin.name, self.schedule.id

    def occurrence(self, nominal_at: datetime, outcome: OccurrenceOutcome, **details: Any) -> Occurrence:
        name, schedule_id = self.key
        return Occurrence(
            plugin=name, schedule_id=schedule_id, nominal_at=nominal_at, outcome=outcome, **details
        )


def key_of(entry: ScheduleEntry) -> ScheduleKey:
    return entry.plugin, entry.schedule_id


def active_schedules(snapshot: Snapshot) -> dict[ScheduleKey, ActiveSchedule]:
    """Return the schedules of every plugin that can run."""
    active = (
        ActiveSchedule(plugin=plugin, schedule=schedule)
        for plugin in snapshot.plugins.values()
        if plugin.runnable
        for schedule in plugin.schedules
    )
    return {schedule.key: schedule for schedule in active}


def entries_for(
    snapshot: Snapshot, stored: Sequence[ScheduleEntry], *, now: datetime, started_at: datetime, rng: Random
) -> tuple[ScheduleEntry, ...]:
    """Return the entries that the store must contain.

    Entries of plugins that cannot run now, and those whose schedule has the same definition, stay unchanged.
    """
    by_key = {key_of(entry): entry for entry in stored}
    configured = {
        (name, schedule.id) for name, plugin in snapshot.plugins.items() for schedule in plugin.schedules
    }
    active = active_schedules(snapshot)
    entries = [by_key[key] for key in sorted((configured - active.keys()) & by_key.keys())]
    for key, schedule in active.items():
        fingerprint = fingerprint_of(schedule.rule, started_at)
        entry = by_key.get(key)
        if entry is None:
            upcoming = first_occurrence(schedule.rule, now=now, started_at=started_at, rng=rng)
        elif entry.fingerprint != fingerprint:
            upcoming = occurrence_after_edit(
                schedule.rule, entry.last_fired_at, now=now, started_at=started_at, rng=rng
            )
        else:
            entries.append(entry)
            continue
        name, schedule_id = key
        blank = ScheduleEntry(
            plugin=name, schedule_id=schedule_id, fingerprint=fingerprint, next_at=None, nominal_at=None
        )
        entries.append(with_next_occurrence(blank, upcoming))
    return tuple(entries)


def next_occurrence_of(entry: ScheduleEntry) -> PlannedOccurrence | None:
    if entry.next_at is None or entry.nominal_at is None:
        return None
    return PlannedOccurrence(nominal_at=entry.nominal_at, start_at=entry.next_at)


def with_next_occurrence(entry: ScheduleEntry, next_occurrence: PlannedOccurrence | None) -> ScheduleEntry:
    if next_occurrence is None:
        return replace(entry, next_at=None, nominal_at=None)
    return replace(entry, next_at=next_occurrence.start_at, nominal_at=next_occurrence.nominal_at)


def firing_of(
    active: ActiveSchedule, entry: ScheduleEntry, plan: DuePlan, *, now: datetime, rng: Random
) -> Firing:
    """Return the firing of a plan: an occurrence for each item, a job for each run."""
    jobs = {run.nominal_at: _new_job(active, now, rng) for run in plan.runs}
    in_order = tuple(jobs.values())
    occurrences = []
    for item in plan.items:
        match item:
            case Skip(nominal_at=at, until_at=until_at, count=count, reason=reason):
                details = {"until_at": until_at, "count": count, "reason": reason}
                occurrences.append(active.occurrence(at, OccurrenceOutcome.SKIPPED, **details))
            case DueRun(nominal_at=at):
                late = lateness(item, now)
                outcome = OccurrenceOutcome.RAN if late is None else OccurrenceOutcome.LATE
                occurrences.append(active.occurrence(at, outcome, job_id=jobs[at].id, late=late))
    return Firing(
        entry=with_next_occurrence(entry, plan.next_occurrence),
        occurrences=tuple(occurrences),
        job=in_order[0] if in_order else None,
        catch_up_jobs=in_order[1:],
        conditions=conditions_of(active, is_catch_up=plan.is_catch_up),
        planned_from=entry,
    )


def firing_of_deferred(
    active: ActiveSchedule, entry: ScheduleEntry, deferred: PlannedOccurrence, *, now: datetime, rng: Random
) -> Firing | None:
    """Return the firing of an occurrence that `max_outstanding_polls` had deferred: its run, or its skip.

    None while the run has to wait for the preferred window.
    """
    rule = active.rule
    reason = SkipReason.PAUSED if entry.paused_at is not None else disallowed_reason(rule, now)
    occurrence = active.occurrence(deferred.nominal_at, OccurrenceOutcome.SKIPPED, reason=reason)
    firing = Firing(
        entry=replace(entry, deferred=None), occurrences=(occurrence,), planned_from=entry, was_deferred=True
    )
    if occurrence.reason is not None:
        return firing
    if rule.preferred_window is not None and not is_in_window(rule.preferred_window, now, rule.zone):
        return None
    job = _new_job(active, now, rng)
    late = replace(
        occurrence,
        outcome=OccurrenceOutcome.LATE,
        reason=SkipReason.OUTSTANDING_POLLS,
        job_id=job.id,
        late=max(now - deferred.start_at, timedelta(0)),
    )
    return replace(firing, occurrences=(late,), job=job, conditions=conditions_of(active))


def firing_on_demand(
    active: ActiveSchedule,
    entry: ScheduleEntry,
    *,
    now: datetime,
    rng: Random,
    token: str | None = None,
    charge: TokenCharge | None = None,
) -> Firing:
    """Return the firing of a run on request: windows, pauses and the breaker do not apply.

    The next occurrence of an `every` schedule is counted from it.
    """
    job = replace(_new_job(active, now, rng), token=token, charged=charge is not None)
    next_occurrence = next_occurrence_of(entry)
    if isinstance(active.rule.trigger, Every):
        next_at = move_into_window(active.rule, add_intervals(active.rule, now))
        next_occurrence = PlannedOccurrence(nominal_at=next_at, start_at=next_at)
    occurrence = active.occurrence(now, OccurrenceOutcome.RAN, reason=RUN_NOW, job_id=job.id)
    return Firing(
        entry=with_next_occurrence(entry, next_occurrence),
        occurrences=(occurrence,),
        job=job,
        conditions=replace(conditions_of(active), breaker=None),
        planned_from=entry,
        on_demand=True,
        charge=charge,
    )


def without_jobs(firing: Firing, reason: SkipReason) -> Firing:
    """Return the firing with its runs skipped, for runs that can never be stored."""
    skipped = tuple(
        replace(occurrence, outcome=OccurrenceOutcome.SKIPPED, reason=reason, job_id=None, late=None)
        for occurrence in firing.occurrences
    )
    return replace(firing, job=None, catch_up_jobs=(), conditions=None, occurrences=skipped)


def conditions_of(active: ActiveSchedule, *, is_catch_up: bool = False) -> StartConditions:
    """Return the conditions under which the store starts a run of the schedule.

    Runs that catch up wait for each other, so neither `if_running` nor the limit on polls applies to them.
    """
    guarded = active.schedule.command == "poll" and not is_catch_up
    return StartConditions(
        if_running=IfRunning.QUEUE if is_catch_up else active.rule.if_running,
        max_polls=active.plugin.max_outstanding_polls if guarded else None,
        breaker=active.plugin.breaker,
    )


def _new_job(active: ActiveSchedule, now: datetime, rng: Random) -> NewJob:
    hidden = active.schedule.payload
    payload = None if hidden is None else hidden.reveal()
    webhook, config = active.plugin.state_webhook, active.plugin.config.reveal()
    return NewJob(
        id=make_id(now, rng),
        plugin=active.plugin.name,
        command=active.schedule.command,
        submitted_by=SubmittedBy.SCHEDULER,
        submitted_detail=active.schedule.id,
        max_attempts=active.plugin.retry.max_attempts,
        trace_id=make_trace_id(rng),
        payload=payload,
        configured_callback=None if webhook is None else webhook.with_model_of(payload, config),
    )
