"""Schedules as they are kept, and what is done with an occurrence."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from ductile.core.jobs.model import NewJob
from ductile.core.policy import EMPTY_POLICY, Policy
from ductile.core.schedules.admission import StartConditions
from ductile.core.schedules.rule import Slot
from ductile.store.model.jobs import JobStateChange
from ductile.struct import Value


class ScheduleEntry(Value):
    """Where one schedule stands."""

    plugin: str
    schedule_id: str
    fingerprint: str
    next_at: datetime | None
    nominal_at: datetime | None
    last_job_id: str | None = None
    last_fired_at: datetime | None = None
    paused_at: datetime | None = None
    #: The occurrence that waits until the poll guard lets it start, and the instant it was to start.
    deferred: Slot | None = None
    #: Since when it is defined as it is; the store's to say.
    defined_at: datetime | None = None


class OccurrenceOutcome(StrEnum):
    RAN = "ran"
    LATE = "late"
    SKIPPED = "skipped"


class Occurrence(Value):
    """One due instant of a schedule, or several adjacent ones skipped for the same reason."""

    plugin: str
    schedule_id: str
    nominal_at: datetime
    outcome: OccurrenceOutcome
    until_at: datetime | None = None
    count: int = 1
    reason: str | None = None
    job_id: str | None = None
    late: timedelta | None = None


class Firing(Value):
    """What one due schedule comes to: occurrences, perhaps a job, and where it stands then.

    One transaction, and unique by nominal instant: a firing that is repeated after a crash changes
    nothing and enqueues nothing.
    """

    entry: ScheduleEntry
    occurrences: tuple[Occurrence, ...]
    job: NewJob | None = None
    #: Further runs that are made up for; each waits for the one before it.
    followers: tuple[NewJob, ...] = ()
    #: The job is the one probe of a half-open breaker.
    probe: bool = False
    #: What must hold for the job to start; checked in the transaction, where nothing can change any more.
    #: A run that may not start becomes a skipped occurrence.
    conditions: StartConditions | None = None
    #: The entry that this was planned from. If it is another one by now, nothing is done.
    planned_from: ScheduleEntry | None = None
    #: Somebody asked for this run: if it may not start, nothing is recorded and they are told why.
    on_demand: bool = False
    #: This is the occurrence that was deferred: if the poll guard still blocks it, nothing is done.
    was_deferred: bool = False
    #: What follows when it ends another run, as with `if_running: cancel`.
    policy: Policy = EMPTY_POLICY


class FireStatus(StrEnum):
    FIRED = "fired"
    SKIPPED = "skipped"
    DEFERRED = "deferred"  # other polls are outstanding: it waits for them, and starts late
    ALREADY_FIRED = "already_fired"
    STALE = "stale"  # the schedule has moved on, was paused or is gone: plan again
    REFUSED_RUNNING = "refused_running"  # on demand only: the previous run has not ended
    REFUSED_POLLS = "refused_polls"  # on demand only: too many polls are outstanding


class FireResult(Value):
    """What came of a firing, and of the runs that had to make way for it (`if_running: cancel`)."""

    answer: FireStatus
    #: They were queued and are dead now.
    ended: tuple[JobStateChange, ...] = ()
    #: They run; their processes have to be ended.
    stopping: tuple[str, ...] = ()
    #: Why nothing was started, where that was decided here and not when the firing was planned.
    reason: str | None = None
