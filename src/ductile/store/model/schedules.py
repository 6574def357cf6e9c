"""Stored schedules, their occurrences, and firing."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ductile.core.jobs.model import NewJob
from ductile.core.policy import EMPTY_POLICY, Policy
from ductile.core.schedules.admission import StartConditions
from ductile.core.schedules.planner import Occurrence
from ductile.core.schedules.rule import PlannedOccurrence
from ductile.store.model.jobs import JobStatusChange, TokenCharge
from ductile.struct import Value


class ScheduleEntry(Value):
    """A stored schedule."""

    plugin: str
    schedule_id: str
    fingerprint: str
    next_at: datetime | None
    nominal_at: datetime | None
    last_job_id: str | None = None
    last_fired_at: datetime | None = None
    paused_at: datetime | None = None
    #: The occurrence that waits for `max_outstanding_polls`, with the instant at which it was due.
    deferred: PlannedOccurrence | None = None
    #: When its definition was stored; set by the store.
    defined_at: datetime | None = None


class Firing(Value):
    """A due schedule: occurrences, perhaps jobs, and its next instant.

    Unique by nominal instant: repeated after a crash it changes nothing.
    """

    entry: ScheduleEntry
    occurrences: tuple[Occurrence, ...]
    job: NewJob | None = None
    #: Missed runs that are caught up; each waits for the one before it.
    catch_up_jobs: tuple[NewJob, ...] = ()
    #: The job is the probe of a half-open breaker.
    probe: bool = False
    #: Conditions for the job to start, checked in the transaction. Otherwise the occurrence is skipped.
    conditions: StartConditions | None = None
    #: The entry that this was planned from. If the stored one differs, nothing is done.
    planned_from: ScheduleEntry | None = None
    #: Requested by an operator: if it may not start, nothing is recorded and the status says why.
    on_demand: bool = False
    #: A deferred occurrence: if `max_outstanding_polls` still blocks it, nothing is done.
    was_deferred: bool = False
    #: The policy for runs that it ends, with `if_running: cancel`.
    policy: Policy = EMPTY_POLICY
    #: The access token that requested it, if that has limits.
    charge: TokenCharge | None = None


class FireStatus(StrEnum):
    FIRED = "fired"
    SKIPPED = "skipped"
    DEFERRED = "deferred"  # other polls are outstanding: the occurrence waits for them, and starts late
    ALREADY_FIRED = "already_fired"
    STALE = "stale"  # the entry has changed since it was planned from: plan again
    REFUSED_RUNNING = "refused_running"  # on demand only: the previous run has not ended
    REFUSED_POLLS = "refused_polls"  # on demand only: too many polls are outstanding


class FireResult(Value):
    """The result of a firing, with the jobs that it cancelled (`if_running: cancel`)."""

    status: FireStatus
    #: Queued jobs that are dead now.
    ended: tuple[JobStatusChange, ...] = ()
    #: Running jobs, whose processes must be ended.
    stopping: tuple[str, ...] = ()
    #: Why no job was started, if the store decided that and not the plan.
    reason: str | None = None
