"""What the end of an execution is judged by, and everything that follows from it, as values."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ductile.core.jobs.breaker import Breaker, BreakerReason
from ductile.core.jobs.ledger import LedgerEntry
from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus, NewJob, Transition
from ductile.core.jobs.outcomes import Evidence
from ductile.core.jobs.plugin_state import FactEntry
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.state import NewRun, RunProgress, RunView
from ductile.core.schedules.planner import Skip
from ductile.core.schedules.rule import Slot
from ductile.struct import Value, field


class LogStatus(StrEnum):
    """How one execution ended, as its row in the job log says."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ORPHANED = "orphaned"
    SUPERSEDED = "superseded"


class SettleView(Value):
    """What surrounds the job at this instant, read under the same lock that the answer is written."""

    job: Job
    state: JsonObject
    #: Claim number of the job that last wrote the state.
    state_claim_seq: int = 0
    breaker: Breaker | None = None
    #: The schedule whose latest run this job is, if it is one.
    latest_of: str | None = None
    #: Where that schedule stands, and whether it is paused.
    slot: Slot | None = None
    paused: bool = False
    #: What its context holds.
    baggage: JsonObject = field(default_factory=dict)
    #: The pipeline run that it is a step of, if it is one.
    run: RunView | None = None


class EventRecord(Value):
    """An emitted event as it is stored: once, however many jobs it starts."""

    id: str
    index: int
    type: str
    payload: JsonObject
    dedupe_key: str | None


class LogEntry(Value):
    status: LogStatus
    reason: JobReason
    error: str | None
    evidence: Evidence


class CallbackState(StrEnum):
    """The words of state webhooks."""

    QUEUED = "queued"
    LOADING = "loading"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"


class CallbackEvent(Value):
    state: CallbackState
    reason: JobReason
    error: str | None = None
    result: JsonValue = None
    artifacts: tuple[JsonValue, ...] | None = None


class Settlement(Value):
    """Everything that follows. The store applies all of it in one transaction, or nothing."""

    transitions: tuple[Transition, ...]
    attempt: int
    next_retry_at: datetime | None = None
    last_error: str | None = None
    suspect: bool = False
    artifacts: tuple[JsonValue, ...] = ()
    log: LogEntry | None = None
    state: JsonObject | None = None
    fact: FactEntry | None = None
    events: tuple[EventRecord, ...] = ()
    children: tuple[NewJob, ...] = ()
    #: Pipeline runs that begin: by an event of this job, or by its end.
    runs: tuple[NewRun, ...] = ()
    #: How the run that it is a step of goes on.
    progress: RunProgress | None = None
    breaker: Breaker | None = None
    #: Why the breaker changed its state; None where only its counts did.
    breaker_reason: BreakerReason | None = None
    #: Where the job's schedule goes on, if its end decides that.
    next_slot: Slot | None = None
    #: Occurrences of that schedule that fell due while the job ran and that nobody has accounted for.
    skipped: tuple[Skip, ...] = ()
    callback: CallbackEvent | None = None
    ledger: tuple[LedgerEntry, ...] = ()

    @property
    def status(self) -> JobStatus:
        return self.transitions[-1].to_status

    @property
    def reason(self) -> JobReason:
        return self.transitions[-1].reason

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL
