"""Jobs: their values, states and transitions, the outcomes of an execution, and the entries of the ledger.

`EDGES` is the table of the state machine. The SQL constraints, the diagram in docs/reference/jobs.md and the
enumerations of the API are tested against it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from ductile.core.json import JsonObject, JsonValue
from ductile.struct import DescribedEnum, Value, field, hide_in_repr, replace


class JobStatus(DescribedEnum):
    QUEUED = "queued", "On the queue: ready to be claimed, or with a hold."
    RUNNING = "running", "A worker claimed it."
    SUCCEEDED = "succeeded", "The plugin did what was asked."
    FAILED = "failed", "It failed and is not retried by itself: the failure is permanent."
    TIMED_OUT = (
        "timed_out",
        "It was still running at its deadline. Passed through on the way to queued or dead.",
    )
    DEAD = "dead", "It was discarded: attempts exhausted, cancelled, purged, or its plugin removed."


class JobReason(DescribedEnum):
    """The reason why a job has its status."""

    SUBMITTED = "submitted", "It was accepted and is on disk."
    CLAIMED = "claimed", "A worker claimed it; its process starts once this is on disk."
    COMPLETED = "completed", "The plugin responded `ok`."
    PLUGIN_ERROR = "plugin_error", "The plugin responded with an error."
    PROTOCOL_ERROR = "protocol_error", "The output of the plugin is not a valid response."
    BAD_EXIT = "bad_exit", "The plugin exited with a failure status and without a usable response."
    KILLED = "killed", "A signal ended the plugin before it responded."
    OUTPUT_TOO_LARGE = "output_too_large", "The plugin printed more than the limit."
    STATE_TOO_LARGE = "state_too_large", "The state or fact the plugin wanted to keep is larger than 1 MiB."
    TOO_MANY_EVENTS = "too_many_events", "The plugin emitted more events in one response than the limit."
    RUN_TOO_LARGE = "run_too_large", "The events of the step would have made its pipeline run too large."
    COULD_NOT_START = "could_not_start", "The plugin's process could not be started."
    PLUGIN_UNAVAILABLE = "plugin_unavailable", "The plugin is configured but missing or refused."
    RUNNER_LOST = "runner_lost", "The fork server that had started the process died before the response came."
    DEADLINE_EXCEEDED = "deadline_exceeded", "The plugin was still running at its deadline."
    ORPHANED = "orphaned", "The daemon died while the job ran."
    RETRY = "retry", "It will be tried again after a delay."
    ATTEMPTS_EXHAUSTED = "attempts_exhausted", "It failed in every attempt it was allowed."
    INTERRUPTED = "interrupted", "The daemon was stopped while the job ran; no attempt was spent."
    NO_RESOURCES = (
        "no_resources",
        "The machine was short of processes, open files or memory; no attempt was spent.",
    )
    RECOVERED = "recovered", "The daemon had died while the job ran; it will run again."
    BAD_TEMPLATE = "bad_template", "A `with` template of its step could not be filled in."
    BAD_BAGGAGE = "bad_baggage", "The `baggage` of its step could not be evaluated."
    BAD_CONDITION = "bad_condition", "The `if` of its step could not be evaluated."
    CANCELLED = "cancelled", "It was cancelled."
    PLUGIN_REMOVED = "plugin_removed", "Its plugin is no longer configured, or is disabled."
    NO_NODE = "no_node", "No live node could run it within `service.dedupe_ttl`."
    PURGED = "purged", "It was removed from the queue by `queue purge`."
    MANUAL_RETRY = "manual_retry", "A retry was requested."
    STEP_FAILED = "step_failed", "A step of the pipeline run failed."
    PARTIAL_SUCCESS = "partial_success", "Some branches of the pipeline run succeeded and others failed."
    STALLED = "stalled", "A pipeline run had no live step left and had not ended: a bug in Ductile."


class SubmittedBy(StrEnum):
    SCHEDULER = "scheduler"
    WEBHOOK = "webhook"
    ROUTE = "route"
    CLI = "cli"
    API = "api"
    HOOK = "hook"
    MCP = "mcp"
    CORE = "core"


class Hold(StrEnum):
    """The reason why a queued job may not be claimed yet. A job without a hold is ready."""

    RETRY = "retry"  # until next_retry_at
    KEY = "key"  # another job with the same dedupe key is ready or running
    PREDECESSOR = "predecessor"  # it runs after another job (`after_job_id`), which has not ended yet
    SUSPECT = "suspect"  # it ran when the daemon crashed; such jobs restart one at a time
    RUN = "run"  # it is a pipeline run: only its steps are claimed
    NO_NODE = "no_node"  # no live node may run it


#: The statuses that end a job when its row has them; then only a retry by an operator leads out of them. An
#: automatic retry passes through `failed` or `timed_out` inside one transaction.
TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.DEAD})

#: The statuses that rows have. `timed_out` is passed through only, and never stored.
STORED_STATUSES = frozenset(JobStatus) - {JobStatus.TIMED_OUT}

_Q, _R, _S = JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED
_F, _T, _D = JobStatus.FAILED, JobStatus.TIMED_OUT, JobStatus.DEAD

#: The statuses that can follow each status; None stands for a new job.
_NEXT: dict[JobStatus | None, tuple[JobStatus, ...]] = {
    None: (_Q,),
    _Q: (_R, _F, _D),
    _R: (_S, _F, _T, _Q, _D),
    _F: (_Q, _D),
    _T: (_Q, _D),
    _D: (_Q,),
}
#: Every transition that can be recorded.
EDGES = frozenset((source, target) for source, targets in _NEXT.items() for target in targets)


class Transition(Value):
    """One change of a job's status, and why."""

    from_status: JobStatus | None
    to_status: JobStatus
    reason: JobReason

    def __post_init__(self) -> None:
        if (self.from_status, self.to_status) not in EDGES:
            raise ValueError(f"a job cannot go from {self.from_status} to {self.to_status}")


class Origin(Value):
    """The identity of a child job: the execution and event that produced it, and its target."""

    job_id: str
    execution: int
    event_index: int
    target: str


@hide_in_repr("url")
class StateSubscription(Value):
    """The subscription of a state webhook to a job. The URL can contain a secret of its receiver."""

    url: str
    #: The `model` of the payload, or of the plugin's configuration. The webhook's body contains it.
    model: str | None = None
    #: The states to send, as `WebhookState` names them; None for all of them.
    events: tuple[str, ...] | None = None

    def with_model_of(self, payload: JsonObject | None, config: JsonObject) -> StateSubscription:
        """Return the subscription for a job with this payload, of a plugin with this configuration."""
        model = (payload or {}).get("model")
        if not isinstance(model, str):
            model = config.get("model")
        return replace(self, model=model if isinstance(model, str) else None)


class NewJob(Value):
    """A job to enqueue."""

    id: str
    plugin: str
    command: str
    submitted_by: SubmittedBy
    max_attempts: int
    payload: JsonObject | None = None
    submitted_detail: str | None = None
    dedupe_key: str | None = None
    #: The dedupe window of this call in seconds; with it, a queued or running match is a duplicate too.
    dedupe_ttl: float | None = None
    parent_job_id: str | None = None
    source_event_id: str | None = None
    event_context_id: str | None = None
    run_id: str | None = None
    step_path: str | None = None
    hops: int = 0
    trace_id: str | None = None
    origin: Origin | None = None
    #: The state webhook that the submission names. That of a duplicate is added to the existing job.
    callback: StateSubscription | None = None
    #: The state webhook of its plugin or pipeline in the configuration. That of a duplicate is ignored.
    configured_callback: StateSubscription | None = None
    #: The job starts only after this one has ended.
    after_job_id: str | None = None
    #: The job that this one runs again.
    rerun_of: str | None = None
    #: The access token that started it, or the job that it follows from.
    token: str | None = None
    #: Whether it counts against the limits of its token.
    charged: bool = False
    #: The name of the node that alone may run it.
    node: str | None = None


class Job(Value):
    """A stored job."""

    id: str
    seq: int
    plugin: str
    command: str
    status: JobStatus
    reason: JobReason
    hold: Hold | None
    attempt: int
    max_attempts: int
    execution: int
    submitted_by: SubmittedBy
    submitted_detail: str | None
    dedupe_key: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    next_retry_at: datetime | None
    last_error: str | None
    parent_job_id: str | None
    source_event_id: str | None
    event_context_id: str | None
    run_id: str | None
    step_path: str | None
    hops: int
    trace_id: str | None
    cancel_requested_at: datetime | None
    owner: str | None
    lease_until: datetime | None
    #: The number of its latest claim in the ledger, by which claims are ordered.
    claim_seq: int
    suspect: bool
    callback: StateSubscription | None
    payload: JsonObject | None = None
    artifacts: tuple[JsonValue, ...] = ()
    #: The job that this one runs again.
    rerun_of: str | None = None
    #: The access token that started it, or the job that it follows from.
    token: str | None = None
    #: The cost that its executions have reported; None if none did.
    cost: float | None = None
    #: The name of the node that alone may run it.
    node: str | None = None
    #: Since when it has waited for a node; None with another hold.
    held_since: datetime | None = None


class LedgerKind(DescribedEnum):
    JOB_TRANSITION = "job.transition", "A job went from one state to another."
    JOB_DEDUPLICATED = "job.deduplicated", "A submission was a duplicate; the existing job is named."
    JOB_RERUN = "job.rerun", "A job was run again as a new one, which is named."
    JOB_CANCEL_REQUESTED = "job.cancel_requested", "Cancellation of a running job was requested."
    JOB_RESULT_SUPERSEDED = (
        "job.result_superseded",
        "A result came after its job had moved on; only the log keeps it.",
    )
    CHILD_CONFLICT = (
        "job.child_conflict",
        "A child job existed already: a defect, since an execution settles once.",
    )
    EVENT_DROPPED = "event.dropped", "An event was not passed on because it had crossed too many hops."
    #: With an `error` in its data, the step could not be entered: its `if` or its baggage failed, or the run
    #: is too large.
    CONDITION_FALSE = (
        "core.switch",
        "A step was bypassed, or a pipeline not started, because its `if` was false.",
    )
    RUN_STALLED = "run.stalled", "A pipeline run had no live step left and was ended: a defect."
    STATE_STALE = (
        "state.stale",
        "A fact was recorded but did not replace the plugin's state, which a later job had written.",
    )
    BREAKER_CHANGED = "breaker.changed", "A circuit breaker changed its state."
    SCHEDULE_FIRED = "schedule.fired", "A scheduled run was put on the queue."
    SCHEDULE_SKIPPED = "schedule.skipped", "One or more scheduled runs were skipped."
    SCHEDULE_DEFERRED = (
        "schedule.deferred",
        "A scheduled run waits until other polls of its plugin have ended.",
    )
    SCHEDULE_PAUSED = "schedule.paused", "A schedule was paused."
    SCHEDULE_RESUMED = "schedule.resumed", "A paused schedule was resumed."
    CONFIG_LOADED = "config.loaded", "A configuration was loaded."
    DELIVERY_DELIVERED = "delivery.delivered", "A receiver accepted a state webhook."
    DELIVERY_DROPPED = "delivery.dropped", "A state webhook was given up after its last attempt."
    DELIVERY_GONE = "delivery.gone", "A receiver answered 410; the state webhook is not sent again."


class LedgerEntry(Value):
    kind: LedgerKind
    job_id: str | None = None
    run_id: str | None = None
    data: JsonObject = field(default_factory=dict)


class PluginEvent(Value):
    """An event as the plugin emitted it."""

    type: str
    payload: JsonObject
    dedupe_key: str | None = None


class PluginResponse(Value):
    """A valid response of a plugin, decoded."""

    ok: bool
    result: JsonValue = None
    error: str | None = None
    retry: bool = True
    events: tuple[PluginEvent, ...] = ()
    state_updates: JsonObject | None = None
    artifacts: tuple[JsonValue, ...] = ()
    cost: float | None = None


class OutputFormat(StrEnum):
    """The format in which the stdout of an execution is read."""

    PROTOCOL = "protocol"  # a response of the plugin protocol
    TEXT = "text"  # of a script: its result, without blanks around it
    JSON = "json"  # of a script: a JSON document, its result


class Evidence(Value):
    """The output and the exit status of one execution, kept verbatim in the log."""

    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    duration: timedelta = timedelta(0)
    output: OutputFormat = OutputFormat.PROTOCOL
    #: More was printed on stderr than is kept.
    stderr_truncated: bool = False
    #: As the plugin reported it, whether it succeeded or not.
    cost: float | None = None


NO_EVIDENCE = Evidence()


class Completed(Value):
    """The plugin responded `ok`."""

    response: PluginResponse
    evidence: Evidence = NO_EVIDENCE


class Failed(Value):
    """The plugin responded with an error, violated the protocol, exited with a failure or did not start."""

    reason: JobReason
    error: str
    permanent: bool = False
    evidence: Evidence = NO_EVIDENCE


class TimedOut(Value):
    """The plugin was still running at its deadline. `permanent` if it is not retried."""

    error: str
    permanent: bool = False
    evidence: Evidence = NO_EVIDENCE


class Requeued(Value):
    """The execution was stopped (by a shutdown, a cancel or a lost lease), or could not start a process.

    Costs no attempt. The settlement of a cancelled job replaces it with `EndedEarly`.
    """

    reason: JobReason = JobReason.INTERRUPTED
    #: Why no process could be started; None if the execution was stopped.
    error: str | None = None
    evidence: Evidence = NO_EVIDENCE


class Orphaned(Value):
    """The daemon died while the job ran; detected at the next start."""

    #: Whether it ran on one of several nodes. Another one runs it at once, unless the daemon of the execution
    #: before died as well.
    on_node: bool = False

    evidence: Evidence = NO_EVIDENCE


class EndedEarly(Value):
    """The job was cancelled or purged, or its plugin was removed."""

    reason: JobReason
    error: str
    evidence: Evidence = NO_EVIDENCE

    def __post_init__(self) -> None:
        if self.reason not in EARLY_END_REASONS:
            raise ValueError(f"{self.reason} does not end a job early")


class NoNodeFound(Value):
    """No live node could run the job for too long. It was not started."""

    error: str
    reason: JobReason = JobReason.NO_NODE
    evidence: Evidence = field(default=NO_EVIDENCE)


class StepNotStarted(Value):
    """A step whose template, baggage or condition could not be evaluated. Its job is stored as failed, and
    never runs.
    """

    reason: JobReason
    error: str
    evidence: Evidence = field(default=NO_EVIDENCE)


class RunEnded(Value):
    """No token of a pipeline run is live any more.

    `result` and `evidence` are those of the last step, `artifacts` those of all steps.
    """

    reason: JobReason
    error: str | None = None
    result: JsonValue = None
    artifacts: tuple[JsonValue, ...] = ()
    evidence: Evidence = NO_EVIDENCE

    @property
    def succeeded(self) -> bool:
        return self.reason is JobReason.COMPLETED


EARLY_END_REASONS = frozenset({JobReason.CANCELLED, JobReason.PLUGIN_REMOVED, JobReason.PURGED})

Outcome: TypeAlias = (
    Completed | Failed | TimedOut | Requeued | Orphaned | EndedEarly | NoNodeFound | StepNotStarted | RunEnded
)
