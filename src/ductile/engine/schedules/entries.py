"""From configured schedules to what the store is told: their entries, and the firing of a plan. Pure.

Owns no loop and no clock; `scheduler` calls it with both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import TypeAlias

from ductile.config.snapshot import PluginInstance, Schedule, Snapshot
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.core.schedules.admission import StartConditions
from ductile.core.schedules.audit import RUN_NOW
from ductile.core.schedules.planner import (
    DueItem,
    DuePlan,
    DueRun,
    Skip,
    SkipReason,
    disallowed_reason,
    lateness,
)
from ductile.core.schedules.rule import (
    Every,
    IfRunning,
    ScheduleRule,
    Slot,
    add_intervals,
    fingerprint_of,
    first_slot,
    slot_after_edit,
    snap_to_window,
)
from ductile.core.schedules.windows import is_in_window
from ductile.store.model.schedules import Firing, Occurrence, OccurrenceOutcome, ScheduleEntry
from ductile.struct import Value, replace

#: The plugin's name and the schedule's id.
ScheduleKey: TypeAlias = tuple[str, str]


class ActiveSchedule(Value):
    """A schedule that is looked after, with what its runs are made of."""

    plugin: PluginInstance
    schedule: Schedule

    @property
    def rule(self) -> ScheduleRule:
        return self.schedule.rule

    @property
    def key(self) -> ScheduleKey:
        return self.plugin.name, self.schedule.id


def active_schedules(snapshot: Snapshot) -> dict[ScheduleKey, ActiveSchedule]:
    """The schedules of every plugin that can run. The others are not scheduled."""
    found = (
        ActiveSchedule(plugin=plugin, schedule=schedule)
        for plugin in snapshot.plugins.values()
        if plugin.runnable
        for schedule in plugin.schedules
    )
    return {watched.key: watched for watched in found}


def entries_for(
    snapshot: Snapshot,
    known: Sequence[ScheduleEntry],
    *,
    now: datetime,
    started_at: datetime,
    rng: Random,
) -> tuple[ScheduleEntry, ...]:
    """What the store is to hold. A plugin that cannot run at present keeps the places it has."""
    stored = {(entry.plugin, entry.schedule_id): entry for entry in known}
    configured = {
        (name, schedule.id) for name, plugin in snapshot.plugins.items() for schedule in plugin.schedules
    }
    watched = active_schedules(snapshot)
    resting = tuple(stored[key] for key in sorted((configured - watched.keys()) & stored.keys()))
    return resting + tuple(
        _entry(each, stored, now=now, started_at=started_at, rng=rng) for each in watched.values()
    )


def _entry(
    watched: ActiveSchedule,
    stored: Mapping[ScheduleKey, ScheduleEntry],
    *,
    now: datetime,
    started_at: datetime,
    rng: Random,
) -> ScheduleEntry:
    """The stored entry if the definition is the same, else where the schedule begins."""
    fingerprint = fingerprint_of(watched.rule, started_at)
    before = stored.get(watched.key)
    if before is not None and before.fingerprint == fingerprint:
        return before
    if before is None:
        slot = first_slot(watched.rule, now=now, started_at=started_at, rng=rng)
    else:
        fired = before.last_fired_at
        slot = slot_after_edit(watched.rule, fired, now=now, started_at=started_at, rng=rng)
    name, schedule_id = watched.key
    blank = ScheduleEntry(
        plugin=name, schedule_id=schedule_id, fingerprint=fingerprint, next_at=None, nominal_at=None
    )
    return moved(blank, slot)


def slot_of(entry: ScheduleEntry) -> Slot | None:
    if entry.next_at is None or entry.nominal_at is None:
        return None
    return Slot(nominal_at=entry.nominal_at, start_at=entry.next_at)


def moved(entry: ScheduleEntry, slot: Slot | None) -> ScheduleEntry:
    if slot is None:
        return replace(entry, next_at=None, nominal_at=None)
    return replace(entry, next_at=slot.start_at, nominal_at=slot.nominal_at)


def firing_of(
    watched: ActiveSchedule, entry: ScheduleEntry, plan: DuePlan, *, now: datetime, rng: Random
) -> Firing:
    """A plan as the store takes it: an occurrence for each item, a job for each run."""
    jobs = {run.nominal_at: _job(watched, now, rng) for run in plan.runs}
    in_order = tuple(jobs.values())
    return Firing(
        entry=moved(entry, plan.following),
        occurrences=tuple(_occurrence(watched, item, jobs, now) for item in plan.items),
        job=in_order[0] if in_order else None,
        followers=in_order[1:],
        conditions=conditions_of(watched, in_a_row=plan.in_a_row),
        planned_from=entry,
    )


def firing_of_deferred(
    watched: ActiveSchedule, entry: ScheduleEntry, deferred: Slot, *, now: datetime, rng: Random
) -> Firing | None:
    """The occurrence that waits for the poll guard: its run, or why it is not to run any more.

    None while it has to wait for its preferred window.
    """
    rule, (name, schedule_id) = watched.rule, watched.key
    occurrence = Occurrence(
        plugin=name,
        schedule_id=schedule_id,
        nominal_at=deferred.nominal_at,
        outcome=OccurrenceOutcome.SKIPPED,
        reason=SkipReason.PAUSED if entry.paused_at is not None else disallowed_reason(rule, now),
    )
    firing = Firing(
        entry=replace(entry, deferred=None), occurrences=(occurrence,), planned_from=entry, was_deferred=True
    )
    if occurrence.reason is not None:
        return firing
    if rule.preferred_window is not None and not is_in_window(rule.preferred_window, now, rule.zone):
        return None
    job = _job(watched, now, rng)
    late = replace(
        occurrence,
        outcome=OccurrenceOutcome.LATE,
        reason=SkipReason.OUTSTANDING_POLLS,
        job_id=job.id,
        late=max(now - deferred.start_at, timedelta(0)),
    )
    return replace(firing, occurrences=(late,), job=job, conditions=conditions_of(watched))


def without_job(firing: Firing, reason: SkipReason) -> Firing:
    """The same firing with its runs skipped: time goes on although they could not be started."""
    skipped = tuple(
        replace(each, outcome=OccurrenceOutcome.SKIPPED, reason=reason, job_id=None, late=None)
        for each in firing.occurrences
    )
    return replace(firing, job=None, followers=(), conditions=None, occurrences=skipped)


def firing_on_demand(watched: ActiveSchedule, entry: ScheduleEntry, *, now: datetime, rng: Random) -> Firing:
    """A run that somebody asked for: whatever the hour, the breaker or a pause; `every` counts from it."""
    job = _job(watched, now, rng)
    slot = slot_of(entry)
    if isinstance(watched.rule.trigger, Every):
        again = snap_to_window(watched.rule, add_intervals(watched.rule, now))
        slot = Slot(nominal_at=again, start_at=again)
    name, schedule_id = watched.key
    occurrence = Occurrence(
        plugin=name,
        schedule_id=schedule_id,
        nominal_at=now,
        outcome=OccurrenceOutcome.RAN,
        reason=RUN_NOW,
        job_id=job.id,
    )
    return Firing(
        entry=moved(entry, slot),
        occurrences=(occurrence,),
        job=job,
        conditions=replace(conditions_of(watched), breaker=None),
        planned_from=entry,
        on_demand=True,
    )


def conditions_of(watched: ActiveSchedule, *, in_a_row: bool = False) -> StartConditions:
    guarded = watched.schedule.command == "poll" and not in_a_row
    return StartConditions(
        if_running=IfRunning.QUEUE if in_a_row else watched.rule.if_running,
        max_polls=watched.plugin.max_outstanding_polls if guarded else None,
        breaker=watched.plugin.breaker,
    )


def _job(watched: ActiveSchedule, now: datetime, rng: Random) -> NewJob:
    payload = watched.schedule.payload
    return NewJob(
        id=make_id(now, rng),
        plugin=watched.plugin.name,
        command=watched.schedule.command,
        submitted_by=SubmittedBy.SCHEDULER,
        submitted_detail=watched.schedule.id,
        max_attempts=watched.plugin.retry.max_attempts,
        trace_id=make_trace_id(rng),
        payload=None if payload is None else payload.reveal(),
    )


def _occurrence(
    watched: ActiveSchedule, item: DueItem, jobs: Mapping[datetime, NewJob], now: datetime
) -> Occurrence:
    name, schedule_id = watched.key
    match item:
        case Skip():
            return Occurrence(
                plugin=name,
                schedule_id=schedule_id,
                nominal_at=item.nominal_at,
                until_at=item.until_at,
                count=item.count,
                outcome=OccurrenceOutcome.SKIPPED,
                reason=item.reason,
            )
        case DueRun():
            late = lateness(item, now)
            return Occurrence(
                plugin=name,
                schedule_id=schedule_id,
                nominal_at=item.nominal_at,
                outcome=OccurrenceOutcome.RAN if late is None else OccurrenceOutcome.LATE,
                job_id=jobs[item.nominal_at].id,
                late=late,
            )


def paused_long_enough(entry: ScheduleEntry, now: datetime, tick: timedelta) -> bool:
    """Skips of a paused schedule are written down once a tick, not one by one."""
    return entry.next_at is not None and entry.next_at + tick <= now
