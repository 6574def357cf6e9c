"""What is submitted, and what became of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from ductile.core.events.model import NewContext, NewEvent
from ductile.core.jobs.model import JobReason, JobStatus, LedgerEntry, NewJob
from ductile.core.policy import EMPTY_POLICY, Policy
from ductile.core.runs.state import NewRun
from ductile.struct import Value


class Submission(Value):
    """Jobs and runs that are accepted together or not at all, with the event and contexts they refer to."""

    jobs: tuple[NewJob, ...] = ()
    runs: tuple[NewRun, ...] = ()
    #: What the first steps of the runs are made by.
    rules: Policy = EMPTY_POLICY
    event: NewEvent | None = None
    contexts: tuple[NewContext, ...] = ()
    #: What is recorded with them: who does not get the event, and why.
    ledger: tuple[LedgerEntry, ...] = ()
    #: How long a success makes later submissions with its key duplicates (service.dedupe_ttl).
    dedupe_window: timedelta = timedelta(hours=24)


class JobStateChange(Value):
    """A job that came to another state without an execution of its own."""

    id: str
    plugin: str
    command: str
    status: JobStatus
    reason: JobReason
    attempt: int
    error: str | None = None


class Accepted(Value):
    job_id: str
    plugin: str
    command: str
    seq: int
    ready: bool
    #: For a run: what it put on the queue, and what ended as it began: steps that could not be made, itself.
    members: tuple[Accepted, ...] = ()
    ended: tuple[JobStateChange, ...] = ()


class Deduplicated(Value):
    """Nothing was enqueued: this job is the same."""

    job_id: str
    plugin: str
    command: str
    dedupe_key: str
    #: Whether its state webhook URL was subscribed to that job; None if it brought none. False: that job has
    #: as many as it may have.
    subscribed: bool | None = None


class ChildConflict(Value):
    """The child existed already; it was not made again."""

    job_id: str


EnqueueResult: TypeAlias = Accepted | Deduplicated | ChildConflict
