"""Values of reading verbs: filters, pages and rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from ductile.core.jobs.failures import Breaker
from ductile.core.jobs.model import (
    Job,
    JobReason,
    JobStatus,
    LedgerKind,
    OutputFormat,
    SubmittedBy,
    Transition,
)
from ductile.core.jobs.settlement import LogStatus
from ductile.core.jobs.statistics import PluginStatistics
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import Graph
from ductile.struct import Value

Row = TypeVar("Row")

DEFAULT_PAGE = 50
LARGEST_PAGE = 200
#: The maximum number of rows that are sorted for a list in another order, the newest that match.
MAX_SORTED = 10_000


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
    reason: JobReason | None = None
    #: Words that must all occur in result, error or stderr of one execution.
    query: str | None = None
    #: Jobs that this access token started, and jobs that follow from them.
    token: str | None = None


class JobSort(StrEnum):
    """The order of a list of jobs: the newest first, or those that ran longest."""

    CREATED = "created"
    DURATION = "duration"


class LogSort(StrEnum):
    """The order of a list of executions: the latest first, the longest, or those with the most stderr."""

    COMPLETED = "completed"
    DURATION = "duration"
    STDERR = "stderr"


class ShortPayload(Value):
    """The payload of a job, or only its length if it is too long to be read for a list."""

    payload: JsonObject | None
    length: int


class LogFilter(Value):
    job_id: str | None = None
    plugin: str | None = None
    command: str | None = None
    status: LogStatus | None = None
    submitted_by: SubmittedBy | None = None
    reason: JobReason | None = None
    completed_from: datetime | None = None
    completed_before: datetime | None = None
    #: Words that must all occur in result, error or stderr.
    query: str | None = None
    #: Leave out `health` and `init`, which the daemon submits.
    exclude_internal: bool = False
    #: Executions of jobs that this access token started, and of jobs that follow from them.
    token: str | None = None


class LogRow(Value):
    """One execution in the log."""

    seq: int
    id: str
    job_id: str
    execution: int
    attempt: int
    max_attempts: int
    plugin: str
    command: str
    status: LogStatus
    reason: JobReason
    job_status: JobStatus
    job_reason: JobReason
    exit_code: int | None
    signal: int | None
    error: str | None
    #: None if its end was not observed: the daemon had died.
    duration: timedelta | None
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
    output: OutputFormat = OutputFormat.PROTOCOL
    stderr_bytes: int = 0
    #: More was printed on stderr than is kept.
    stderr_truncated: bool = False
    #: The job that its job runs again.
    rerun_of: str | None = None
    #: The access token that its job was started with.
    token: str | None = None
    #: As this execution reported it.
    cost: float | None = None
    #: The node that alone may run its job.
    node: str | None = None
    #: The output, which lists omit.
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
    #: The access token that its job was started with.
    token: str | None = None


class JobDetails(Value):
    """A job, or a run with its steps, and their latest executions, read at one instant."""

    job: Job
    #: The steps of a run, oldest first; from the log if retention has removed their rows.
    steps: tuple[Job, ...]
    #: The latest execution of the job and of each step, by job id.
    executions: Mapping[str, LogRow]


class RunRecord(JobDetails):
    """A pipeline run with its history."""

    #: Ledger entries about the run, such as bypassed steps.
    ledger_entries: tuple[LedgerRow, ...]
    #: None if retention has removed it.
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
    #: When the oldest ready job was submitted.
    oldest_ready_at: datetime | None


class ExecutionStatistics(Value):
    """Executions since an instant, by plugin."""

    plugins: tuple[PluginStatistics, ...]
    #: Whether all of them were counted, and not only the latest.
    complete: bool


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
