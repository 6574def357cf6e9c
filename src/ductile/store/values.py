"""What is said to the store and what it answers: plain values, no rows and no connections."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

from ductile.core.breaker import Breaker
from ductile.core.firing import RunConditions
from ductile.core.jobs import Job, JobStatus, NewJob, Reason, SubmittedBy, Transition
from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.ledger import LedgerEntry, LedgerKind
from ductile.core.lineage import NewContext, NewEvent
from ductile.core.pipelines import Graph
from ductile.core.rules import Rules
from ductile.core.run_values import NewRun
from ductile.core.settlement import LogStatus, Settlement
from ductile.value import Value, field

__all__ = ["NewContext", "NewEvent"]  # values of the core that callers of the store know by these names

Row = TypeVar("Row")

DEFAULT_PAGE = 50
LARGEST_PAGE = 200


# ---------------------------------------------------------------------------------------- submitting


class Submission(Value):
    """Jobs and runs that are accepted together or not at all, with the event and contexts they refer to."""

    jobs: tuple[NewJob, ...] = ()
    runs: tuple[NewRun, ...] = ()
    #: What the first steps of the runs are made by.
    rules: Rules = field(default_factory=Rules)
    event: NewEvent | None = None
    contexts: tuple[NewContext, ...] = ()
    #: What is recorded with them: who does not get the event, and why.
    ledger: tuple[LedgerEntry, ...] = ()
    #: How long a success makes later submissions with its key duplicates (service.dedupe_ttl).
    dedupe_window: timedelta = timedelta(hours=24)


class Accepted(Value):
    job_id: str
    seq: int
    ready: bool
    #: For a run: its first steps.
    members: tuple[str, ...] = ()


class Deduplicated(Value):
    """Nothing was enqueued: this job is the same."""

    job_id: str
    dedupe_key: str


class ChildConflict(Value):
    """The child existed already; it was not made again."""

    job_id: str


Enqueued: TypeAlias = Accepted | Deduplicated | ChildConflict


# -------------------------------------------------------------------------------- claiming, settling


class StoredEvent(Value):
    id: str
    type: str
    source: str
    payload: JsonObject
    headers: JsonObject | None
    dedupe_key: str | None
    created_at: datetime


class Claim(Value):
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
    started: tuple[Enqueued, ...] = ()
    #: Other jobs that ended with it: steps that could not be made, and pipeline runs.
    ended: tuple[MovedJob, ...] = ()


class Unsettled(StrEnum):
    """Why an outcome changed nothing."""

    ALREADY_SETTLED = "already_settled"
    SUPERSEDED = "superseded"
    UNKNOWN_JOB = "unknown_job"


SettleAnswer: TypeAlias = Settled | Unsettled


class CancelAnswer(StrEnum):
    CANCELLED = "cancelled"  # it was queued and is dead now
    REQUESTED = "requested"  # it runs; it ends when its process is gone
    ALREADY_ENDED = "already_ended"
    UNKNOWN_JOB = "unknown_job"


class Cancelling(Value):
    """What came of a cancel. `more` says that a run has queued steps left to end: ask again."""

    answer: CancelAnswer
    #: They run; their processes have to be ended.
    stopping: tuple[str, ...] = ()
    ended: tuple[MovedJob, ...] = ()
    more: bool = False


class Overdue(Value):
    """Runs that were cancelled at their deadline, and when the next one is due."""

    cancelled: tuple[Cancelling, ...]
    next_due_at: datetime | None


class RetryAnswer(StrEnum):
    QUEUED = "queued"
    NOT_ENDED = "not_ended"
    NOTHING_TO_RETRY = "nothing_to_retry"  # every step that failed would fail again in the same way
    UNKNOWN_STEP = "unknown_step"  # of a run that is to be taken up from there
    CHANGED = "changed"  # the pipeline is another one now, and the step's surroundings with it
    SUCCEEDED = "succeeded"
    RUN_ENDED = "run_ended"  # a member of an ended run: the run is what can be retried
    RETAINED_NO_MORE = "retained_no_more"  # only its log is left
    UNKNOWN_JOB = "unknown_job"


class Released(Value):
    """How many waiting jobs became ready or moved on, and when the next is due."""

    count: int
    next_due_at: datetime | None


class Moved(Value):
    """Jobs that one sweep has ended or recovered; `more` says that another is needed."""

    jobs: tuple[MovedJob, ...]
    more: bool


class MovedJob(Value):
    id: str
    plugin: str
    command: str
    status: JobStatus
    reason: Reason
    attempt: int
    error: str | None = None


class InitStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class InitKey(Value):
    """What an init is for: it runs again when the plugin or its configuration changes."""

    plugin: str
    fingerprint: str
    config_hash: str


class NewInit(Value):
    """An init that is to run if this version of the plugin has had none: what for, and as which job."""

    key: InitKey
    job: NewJob


class InitAnswer(Value):
    status: InitStatus
    job_id: str | None = None
    error: str | None = None


# ------------------------------------------------------------------------------------------- reading


class Page(Value, Generic[Row]):
    rows: tuple[Row, ...]
    next_cursor: str | None


class JobFilter(Value):
    job_id: str | None = None
    plugin: str | None = None
    command: str | None = None
    status: JobStatus | None = None
    submitted_by: SubmittedBy | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    parent_job_id: str | None = None
    run_id: str | None = None
    #: Words that must all occur in the result, the error or stderr of one of its executions.
    query: str | None = None


class LogFilter(Value):
    job_id: str | None = None
    plugin: str | None = None
    command: str | None = None
    status: LogStatus | None = None
    submitted_by: SubmittedBy | None = None
    completed_from: datetime | None = None
    completed_before: datetime | None = None
    #: Words that must all occur in the result, the error or stderr.
    query: str | None = None


class LogRow(Value):
    """One execution, as the log keeps it."""

    seq: int
    id: str
    job_id: str
    execution: int
    attempt: int
    max_attempts: int
    plugin: str
    command: str
    status: LogStatus
    reason: Reason
    job_status: JobStatus
    job_reason: Reason
    exit_code: int | None
    signal: int | None
    error: str | None
    duration: timedelta
    submitted_by: SubmittedBy
    submitted_detail: str | None
    dedupe_key: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime
    parent_job_id: str | None
    source_event_id: str | None
    event_context_id: str | None
    run_id: str | None
    step_path: str | None
    trace_id: str | None
    artifacts: tuple[JsonValue, ...] = ()
    #: Only read where one execution is asked for: lists stay small.
    result: str | None = None
    stderr: str | None = None
    payload: JsonObject | None = None


class TransitionRow(Value):
    seq: int
    execution: int
    transition: Transition
    at: datetime


class FactRow(Value):
    seq: int
    plugin: str
    fact_type: str
    job_id: str | None
    command: str | None
    body: JsonObject
    created_at: datetime


class PluginState(Value):
    plugin: str
    state: JsonObject
    updated_at: datetime


class LedgerRow(Value):
    seq: int
    at: datetime
    kind: LedgerKind
    job_id: str | None
    run_id: str | None
    data: JsonObject


class RunRecord(Value):
    """A pipeline run with all that is known of it, read at one instant."""

    job: Job
    #: Oldest first; from the log where retention has taken their rows.
    members: tuple[Job, ...]
    #: The latest execution of the run and of each member, by job.
    executions: Mapping[str, LogRow]
    #: What the ledger tells of the run: steps that were bypassed, and why.
    notes: tuple[LedgerRow, ...]
    #: The graph that it follows; None when retention has taken it.
    graph: Graph | None


class QueueCounts(Value):
    ready: int
    waiting: int
    running: int

    @property
    def depth(self) -> int:
        return self.ready + self.waiting + self.running


class PluginDepth(Value):
    """One plugin's part of the queue; pipeline runs count under their own name."""

    plugin: str
    ready: int
    waiting: int
    running: int
    #: When the job was submitted that could have started first.
    oldest_ready_at: datetime | None


class Tally(Value):
    """Executions of a plugin that ended alike."""

    plugin: str
    status: LogStatus
    executions: int
    mean: timedelta
    longest: timedelta


class BreakerRow(Value):
    plugin: str
    command: str
    breaker: Breaker
    updated_at: datetime


class BreakerTransitionRow(Value):
    seq: int
    plugin: str
    command: str
    from_state: str | None
    to_state: str
    failures: int
    reason: str
    job_id: str | None
    created_at: datetime


# ----------------------------------------------------------------------------------------- schedules


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
    nothing and enqueues nothing (ENGINE 8).
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
    conditions: RunConditions | None = None
    #: The entry that this was planned from. If it is another one by now, nothing is done.
    planned_from: ScheduleEntry | None = None
    #: Somebody asked for this run: if it may not start, nothing is recorded and they are told why.
    on_demand: bool = False


class FiringAnswer(StrEnum):
    FIRED = "fired"
    SKIPPED = "skipped"
    ALREADY_FIRED = "already_fired"
    STALE = "stale"  # the schedule has moved on, was paused or is gone: plan again
    REFUSED_RUNNING = "refused_running"  # on demand only: the previous run has not ended
    REFUSED_POLLS = "refused_polls"  # on demand only: too many polls are outstanding


class FiringReport(Value):
    """What came of a firing, and of the runs that had to make way for it (`if_running: cancel`)."""

    answer: FiringAnswer
    #: They were queued and are dead now.
    ended: tuple[MovedJob, ...] = ()
    #: They run; their processes have to be ended.
    stopping: tuple[str, ...] = ()
    #: Why nothing was started, where that was decided here and not when the firing was planned.
    reason: str | None = None


# ---------------------------------------------------------------------------------------- deliveries


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DROPPED = "dropped"


class Delivery(Value):
    """A state webhook in the outbox."""

    seq: int
    id: str
    job_id: str
    sequence: int
    state: str
    url: str
    #: Scheme, host and port of the URL.
    receiver: str
    body: str
    status: DeliveryStatus
    attempts: int
    next_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    created_at: datetime
    completed_at: datetime | None


class DeliveryRoom(Value):
    """How many deliveries may be taken: in all, and for each receiver with what is under way there."""

    all: int
    each: int
    busy: Mapping[str, int] = field(default_factory=dict)

    def of(self, receiver: str) -> int:
        return self.each - self.busy.get(receiver, 0)


class TakenDeliveries(Value):
    """Deliveries to send now, and when time alone will make the next one due."""

    deliveries: tuple[Delivery, ...]
    next_due_at: datetime | None


class DeliveryReport(Value):
    """What came of one attempt. `retry_at` None after a failure means that it is given up."""

    id: str
    delivered: bool
    http_status: int | None = None
    error: str | None = None
    retry_at: datetime | None = None


# ----------------------------------------------------------------------------- configuration, upkeep


class ConfigOrigin(StrEnum):
    START = "start"
    RELOAD = "reload"
    RUN = "run"


class ConfigRecord(Value):
    seq: int
    hash: str
    origin: ConfigOrigin
    content: JsonObject
    loaded_at: datetime


class Retention(Value):
    """How long what is kept (SPEC 4.9)."""

    succeeded_jobs: timedelta = timedelta(hours=24)
    job_log: timedelta = timedelta(days=30)
    breaker_transitions: timedelta = timedelta(days=90)
    occurrences: timedelta = timedelta(days=30)
    deliveries: timedelta = timedelta(days=7)
    ledger: timedelta = timedelta(days=7)
    ledger_rows: int = 1_000_000
    #: Facts are kept for good unless a time is set.
    facts: timedelta | None = None


class Pruned(Value):
    rows: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


class StoreVitals(Value):
    """The store as a thing on a disk."""

    place: str
    size: int
    #: What was written and not yet moved to its place.
    log_size: int
    schema_version: int
    #: The newest one that this program knows.
    newest_schema: int
    filesystem: str | None
    #: What the database itself finds wrong with its files.
    damage: tuple[str, ...]


class BadEndings(Value):
    """Jobs of one command that failed for good."""

    plugin: str
    command: str
    jobs: int
    latest_job_id: str


class TroubledReceiver(Value):
    """A receiver of state webhooks that refuses or does not answer."""

    receiver: str
    #: Tried in vain, and to be tried again.
    waiting: int
    dropped: int
    last_error: str | None


class Troubles(Value):
    """What has gone wrong of late."""

    #: When the newest entry of the ledger was written.
    newest_at: datetime | None
    endings: tuple[BadEndings, ...]
    receivers: tuple[TroubledReceiver, ...]
