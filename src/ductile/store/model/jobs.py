"""TODO"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from ductile.core.events.model import NewContext, NewEvent
from ductile.core.jobs.model import Job, JobReason, JobStatus, LedgerEntry, NewJob
from ductile.core.jobs.settlement import Settlement
from ductile.core.json import JsonObject
from ductile.core.policy import EMPTY_POLICY, Policy
from ductile.core.runs.state import NewRun
from ductile.struct import Value


class Submission(Value):
    """Jobs and runs that are accepted together or not at all, with the event and contexts they refer to."""

    jobs: tuple[NewJob, ...] = ()
    runs: tuple[NewRun, ...] = ()
    #: What the first steps of the runs are made by.
    policy: Policy = EMPTY_POLICY
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


class StoredEvent(Value):
    id: str
    type: str
    source: str
    payload: JsonObject
    headers: JsonObject | None
    dedupe_key: str | None
    created_at: datetime

    @property
    def header_texts(self) -> dict[str, str] | None:
        """The headers, of an event that came by a webhook."""
        return None if self.headers is None else {name: str(text) for name, text in self.headers.items()}


class ClaimedJob(Value):
    """A job that is now ours to run, with all that its request is made of."""

    job: Job
    event: StoredEvent | None
    state: JsonObject
    baggage: JsonObject
    #: The pipeline that the job is a step of.
    pipeline: str | None = None
    #: The step's own time limit.
    timeout: timedelta | None = None
    #: Somebody is told how the run goes that the job is a step of.
    run_is_followed: bool = False

    @property
    def is_followed(self) -> bool:
        return self.run_is_followed or self.job.callback is not None


class Settled(Value):
    """The outcome was applied: this is what followed."""

    job_id: str
    settlement: Settlement
    started: tuple[EnqueueResult, ...] = ()
    #: Other jobs that ended with it: steps that could not be made, and pipeline runs.
    ended: tuple[JobStateChange, ...] = ()


class Unsettled(StrEnum):
    """Why an outcome changed nothing."""

    ALREADY_SETTLED = "already_settled"
    SUPERSEDED = "superseded"
    UNKNOWN_JOB = "unknown_job"


SettleResult: TypeAlias = Settled | Unsettled


class CancelStatus(StrEnum):
    CANCELLED = "cancelled"  # it was queued and is dead now
    REQUESTED = "requested"  # it runs; it ends when its process is gone
    ALREADY_ENDED = "already_ended"
    UNKNOWN_JOB = "unknown_job"


class CancelResult(Value):
    """What came of a cancel. `more` says that a run has queued steps left to end: ask again."""

    answer: CancelStatus
    #: They run; their processes have to be ended.
    stopping: tuple[str, ...] = ()
    ended: tuple[JobStateChange, ...] = ()
    more: bool = False


class OverdueRuns(Value):
    """Runs that were cancelled at their deadline, and when the next one is due."""

    cancelled: tuple[CancelResult, ...]
    next_due_at: datetime | None


class RetryResult(StrEnum):
    QUEUED = "queued"
    NOT_ENDED = "not_ended"
    NOTHING_TO_RETRY = "nothing_to_retry"  # every step that failed would fail again in the same way
    UNKNOWN_STEP = "unknown_step"  # of a run that is to be taken up from there
    CHANGED = "changed"  # the pipeline is another one now, and the step's surroundings with it
    SUCCEEDED = "succeeded"
    RUN_ENDED = "run_ended"  # a member of an ended run: the run is what can be retried
    RUN_CANCELLED = "run_cancelled"  # a member of a run that is being cancelled
    ENDED_AGAIN = "ended_again"  # since the caller looked, the job was retried and has ended once more
    RETAINED_NO_MORE = "retained_no_more"  # only its log is left
    UNKNOWN_JOB = "unknown_job"


class ReleaseResult(Value):
    """How many waiting jobs became ready or moved on, and when the next is due."""

    count: int
    next_due_at: datetime | None


class SweepResult(Value):
    """Jobs that one sweep has ended or recovered; `more` says that another is needed."""

    jobs: tuple[JobStateChange, ...]
    more: bool


class InitStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class InitKey(Value):
    """What an init is for: it runs again when the plugin or its configuration changes."""

    plugin: str
    fingerprint: str
    config_hash: str


class InitRecord(Value):
    """What came of an init, or that nothing has yet."""

    key: InitKey
    status: InitStatus
    job_id: str | None
    error: str | None
    updated_at: datetime


class NewInit(Value):
    """An init that is to run if this version of the plugin has had none: what for, and as which job."""

    key: InitKey
    job: NewJob


class InitResult(Value):
    status: InitStatus
    job_id: str | None = None
    error: str | None = None
