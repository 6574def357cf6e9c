"""Values of the verbs that move jobs: submissions, claims, settlements, cancels, retries and inits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from ductile.core.events.model import NewContext, NewEvent
from ductile.core.jobs.model import Job, JobReason, JobStatus, LedgerEntry, NewJob
from ductile.core.jobs.placement import JobGroup
from ductile.core.jobs.settlement import Settlement
from ductile.core.json import JsonObject
from ductile.core.policy import EMPTY_POLICY, Policy
from ductile.core.runs.state import NewRun
from ductile.core.token_limits import TokenLimits
from ductile.struct import Value


class TokenCharge(Value):
    """The access token that new jobs are counted for, if it has limits."""

    token: str
    limits: TokenLimits


class Submission(Value):
    """Jobs and runs that are accepted together or not at all, with their event and contexts."""

    jobs: tuple[NewJob, ...] = ()
    runs: tuple[NewRun, ...] = ()
    #: The policy for the first steps of the runs.
    policy: Policy = EMPTY_POLICY
    event: NewEvent | None = None
    contexts: tuple[NewContext, ...] = ()
    #: Ledger entries to append, such as subscribers that do not get the event.
    ledger: tuple[LedgerEntry, ...] = ()
    #: How long a success makes later submissions with its key duplicates (`service.dedupe_ttl`).
    dedupe_window: timedelta = timedelta(hours=24)
    #: None if the submission is not limited.
    charge: TokenCharge | None = None


class JobStatusChange(Value):
    """A job that changed its state without an execution of its own."""

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
    #: Of a run: its first steps, and jobs that ended at once: steps that could not be created, or itself.
    steps: tuple[Accepted, ...] = ()
    ended: tuple[JobStatusChange, ...] = ()


class Deduplicated(Value):
    """Nothing was enqueued: this job is a duplicate."""

    job_id: str
    plugin: str
    command: str
    dedupe_key: str
    #: Whether the state webhook URL of the submission was subscribed to that job; None if it had none. False:
    #: that job has the maximum number of subscriptions.
    subscribed: bool | None = None


class DuplicateChild(Value):
    """The child exists already; it was not created again."""

    job_id: str


EnqueueResult: TypeAlias = Accepted | Deduplicated | DuplicateChild


class StoredEvent(Value):
    id: str
    type: str
    source: str
    payload: JsonObject
    headers: dict[str, str] | None
    dedupe_key: str | None
    created_at: datetime


class ClaimedJob(Value):
    """A claimed job, with everything that its request contains."""

    job: Job
    event: StoredEvent | None
    state: JsonObject
    baggage: JsonObject
    #: The pipeline, if the job is a step.
    pipeline: str | None = None
    #: The step's own time limit.
    timeout: timedelta | None = None
    #: Whether a state webhook URL is subscribed to the job's run.
    run_has_subscribers: bool = False

    @property
    def has_subscribers(self) -> bool:
        return self.run_has_subscribers or self.job.callback is not None


class Settled(Value):
    """The outcome was applied, with these consequences."""

    job_id: str
    settlement: Settlement
    started: tuple[EnqueueResult, ...] = ()
    #: Other jobs that ended with it: steps that could not be created, and pipeline runs.
    ended: tuple[JobStatusChange, ...] = ()


class NotSettled(StrEnum):
    """The reason why an outcome changed nothing."""

    ALREADY_SETTLED = "already_settled"
    SUPERSEDED = "superseded"
    UNKNOWN_JOB = "unknown_job"


SettleResult: TypeAlias = Settled | NotSettled


class CancelStatus(StrEnum):
    CANCELLED = "cancelled"  # the job was queued and is dead now
    REQUESTED = "requested"  # the job runs; it ends when its process is gone
    ALREADY_ENDED = "already_ended"
    UNKNOWN_JOB = "unknown_job"


class CancelResult(Value):
    """The result of a cancel. `more`: the run has queued steps left; cancel again."""

    status: CancelStatus
    #: Running jobs, whose processes must be ended.
    stopping: tuple[str, ...] = ()
    ended: tuple[JobStatusChange, ...] = ()
    more: bool = False


class OverdueRuns(Value):
    """Runs that were cancelled at their deadline, and when the next one is due."""

    cancelled: tuple[CancelResult, ...]
    next_due_at: datetime | None


class RetryResult(StrEnum):
    QUEUED = "queued"
    NOT_ENDED = "not_ended"
    NOT_RETRYABLE = "not_retryable"  # every failed step would fail again in the same way
    UNKNOWN_STEP = "unknown_step"  # the run has no such step
    CHANGED = "changed"  # the pipeline around the step has changed
    SUCCEEDED = "succeeded"
    RUN_ENDED = "run_ended"  # a step of an ended run: the run is what can be retried
    RUN_CANCELLED = "run_cancelled"  # a step of a run that is being cancelled
    CHANGED_SINCE_READ = "changed_since_read"  # the job was retried and ended again since the caller read it
    PRUNED = "pruned"  # retention has removed the job; only its log is left
    UNKNOWN_JOB = "unknown_job"


class ReleaseResult(Value):
    """The number of jobs whose retry was due, and when the next one is due."""

    count: int
    next_due_at: datetime | None


class BatchResult(Value):
    """Jobs that one batch has ended or recovered. `more`: another batch is needed."""

    jobs: tuple[JobStatusChange, ...]
    more: bool


class PlacementResult(Value):
    """The number of jobs that one batch held and released, by group, and the jobs that it ended."""

    held: Mapping[JobGroup, int]
    released: Mapping[JobGroup, int]
    ended: tuple[JobStatusChange, ...]
    more: bool


class JobsWithoutNode(Value):
    """Queued jobs that are held because no live node may run them."""

    plugin: str
    #: The node that alone may run them.
    node: str | None
    jobs: int
    #: When the first of them was held.
    held_since: datetime


class InitStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class InitKey(Value):
    """The version of a plugin and its configuration, each of which is initialised once."""

    plugin: str
    fingerprint: str
    config_hash: str


class InitRecord(Value):
    """The result of an init, or that it is pending."""

    key: InitKey
    status: InitStatus
    job_id: str | None
    error: str | None
    updated_at: datetime


class NewInit(Value):
    """A job to run as init, if this version of the plugin had none."""

    key: InitKey
    job: NewJob


class InitResult(Value):
    status: InitStatus
    job_id: str | None = None
    error: str | None = None
